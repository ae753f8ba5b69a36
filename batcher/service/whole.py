"""Whole answers to conversations on the short way: inside uvicorn's protocol, by callbacks, as `POST /v1/run` is answered.

Through ASGI the same answer takes three tasks and twice the CPU. Here it takes none, and so it must wait for nothing but the
limits and the answer itself. What is more than that (a stream, a checker on a thread, a large body) is left to `messages.py`,
which does all of it; only an answer too long to be looked through at once takes a task here. Only batch mode's text backends
are served like this: where a model generates, its work makes all of this small.
"""

import asyncio
from collections.abc import Mapping
from math import inf

from batcher.core.effects import Answer
from batcher.errors import ServiceError
from batcher.service.account import Account
from batcher.service.batch_answers import TextAnswerer, usage_of_cancelled
from batcher.service.conversation import Prepared, require_model
from batcher.service.driver import End
from batcher.service.front import Front, Passage
from batcher.service.generation import NO_USAGE, Finished
from batcher.service.records import Route
from batcher.service.replying import answer_head, reply_headers
from batcher.service.run import OnResult, Pending, spawn
from batcher.service.safety.contract import CheckContext, Checked, Verdict
from batcher.service.safety.stage import SafetyStage, error_of
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.dialect import Dialect
from batcher.service.wire.native import NATIVE
from batcher.service.wire.openai import OPENAI
from batcher.service.wire.replies import Reply
from batcher.types import FinishReason, Outcome, Usage


class WholeAnswers:
    """The routes."""

    def __init__(self, front: Front, answerer: TextAnswerer) -> None:
        self._is_on = front.safety is None or front.safety.is_inline
        self._native = WholeEndpoint(front, answerer, Route.MESSAGES, NATIVE)
        self._anthropic = WholeEndpoint(front, answerer, Route.MESSAGES, ANTHROPIC)
        self._openai = WholeEndpoint(front, answerer, Route.CHAT, OPENAI)

    def find(self, url: bytes, headers: Mapping[bytes, bytes]) -> "WholeEndpoint | None":
        """Who answers a POST of this; None where this way is closed."""
        if not self._is_on:
            return None
        if url == b"/v1/messages":
            return self._anthropic if b"anthropic-version" in headers else self._native
        return self._openai if url == b"/v1/chat/completions" else None


class WholeEndpoint:
    """An Endpoint: one route in one grammar."""

    model_id = ""
    takes_large = False

    def __init__(self, front: Front, answerer: TextAnswerer, route: Route, dialect: Dialect) -> None:
        self.front = front
        self.route = route
        self.dialect = dialect
        self.answerer = answerer

    def submit(self, passage: Passage, body: bytes | bytearray, on_result: OnResult) -> Pending | None:
        conversation = self.dialect.decode(bytes(body))
        require_model(self.answerer, conversation.model)
        if conversation.is_streamed:
            return None
        texts = [message.content for message in conversation.messages]
        safety = self.front.safety
        passage.model = self.answerer.model_id
        context = CheckContext(tenant=passage.caller.tenant, tier=passage.caller.tier, model=passage.model)
        if safety is not None and (finding := safety.check_input_now(context, texts)) is not None:
            raise error_of(finding)
        room = inf if conversation.max_tokens else self.front.limiter.room(passage.caller)
        prepared = self.answerer.prepare_now(conversation, room=room)
        call = _Call(self, passage, context, prepared, on_result)
        call.reserve()
        return call


class _Call:
    """`_number` is what the driver knows it by, once submitted; `_computed` is what its answer took, once that is there,
    and `_task` looks through it where that takes one."""

    __slots__ = (
        "_account",
        "_computed",
        "_context",
        "_endpoint",
        "_is_over",
        "_number",
        "_on_result",
        "_passage",
        "_prepared",
        "_task",
    )

    def __init__(
        self, endpoint: WholeEndpoint, passage: Passage, context: CheckContext, prepared: Prepared, on_result: OnResult
    ) -> None:
        self._endpoint = endpoint
        self._passage = passage
        self._context = context
        self._prepared = prepared
        self._on_result = on_result
        self._account = Account(endpoint.front, passage)
        self._number: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._computed: Usage | None = None
        self._is_over = False

    def reserve(self) -> None:
        """Raises InvalidRequest."""
        self._account.reserve(self._prepared.num_input_tokens, self._prepared.max_tokens, self._enter)

    def cancel(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        task, self._task = self._task, None  # A task that was cancelled refers to what it was for.
        if task is not None:
            task.cancel()
        if self._computed is not None and self._account.is_open:
            self._stopped(self._computed)
        elif self._number is not None and self._account.is_open:
            has_left = self._endpoint.answerer.driver.cancel(self._number)
            self._stopped(usage_of_cancelled(self._prepared.num_input_tokens, has_left=has_left))
        self._account.drop()

    def _stopped(self, computed: Usage) -> None:
        self._account.stopped(Outcome.CANCELLED, computed, 0)

    def _enter(self, error: ServiceError | None) -> None:
        if error is not None:
            self._end(error)
            return
        prompt, driver = self._prepared.prompt, self._endpoint.answerer.driver
        assert isinstance(prompt, str)
        self._number = driver.submit(self._passage.caller, prompt, self._prepared.num_input_tokens, self._on_end)

    def _on_end(self, end: End, run_s: float) -> None:
        if not isinstance(end, Answer):
            self._account.stopped(end.outcome, NO_USAGE, 0)
            self._end(end.error)
            return
        passage, safety = self._passage, self._endpoint.front.safety
        answer = self._endpoint.answerer.whole(end, self._prepared, run_s)
        passage.timing = answer.timing
        self._computed = answer.usage
        if answer.text:
            passage.note_first()
        if safety is None:
            self._finish(answer, None)
        elif safety.can_check_now(len(answer.text)):
            self._finish(answer, safety.check_output_now(self._context, answer.text))
        else:
            self._task = spawn(self._endpoint.front, lambda: self._check_output(safety, answer), self._refuse)

    async def _check_output(self, safety: SafetyStage, end: Finished) -> None:
        checks = safety.open_output(self._context)
        checked = await checks.feed(end.text)
        if checked.finding is None:
            last = await checks.flush()
            checked = Checked(checked.text + last.text, last.finding)
        self._finish(end, checked)

    def _refuse(self, error: ServiceError) -> None:
        """There is an answer, and it is for nobody."""
        if self._account.is_open:
            assert self._computed is not None
            self._account.stopped(Outcome.FAILED, self._computed, 0)
        self._end(error)

    def _finish(self, end: Finished, checked: Checked | None) -> None:
        num_computed = end.usage.output_tokens
        if checked is not None and checked.finding is not None:
            if checked.finding.verdict is Verdict.REFUSE:
                self._refuse(error_of(checked.finding))
                return
            delivered = Usage(end.usage.input_tokens, len(checked.text.encode()))
            end = Finished(checked.text, FinishReason.REFUSAL, delivered)
        self._passage.num_output = end.usage.output_tokens
        try:
            self._account.answered(end.usage, num_computed=num_computed)
        except ServiceError as error:
            self._end(error)
            return
        self._end(self._reply(end))

    def _reply(self, end: Finished) -> Reply:
        passage, dialect = self._passage, self._endpoint.dialect
        head = answer_head(passage, self._endpoint.answerer, self._prepared.num_input_tokens)
        body = dialect.encode_answer(head, end.text, end.finish, end.stop_sequence, end.usage)
        return Reply(200, body, passage.shown_id, reply_headers(passage, dialect))

    def _end(self, result: Reply | ServiceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_result(result)
