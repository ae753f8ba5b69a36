"""`POST /v1/run` (batch mode's plain contract), apart from the way bytes come and go.

Two front ends share it: the fast path inside uvicorn's protocol, and a raw ASGI endpoint for any other server. Both first ask
the door with the headers, before a byte of the body is read, then `submit` with the whole body. A call goes through the same
stages as a conversation does, callback by callback: a task for each would cost more than all of them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeAlias

from batcher.core.effects import Answer
from batcher.errors import NotFound, ServerFault, ServiceError
from batcher.service import log
from batcher.service.account import Account
from batcher.service.driver import Driver, End
from batcher.service.front import Front, Passage
from batcher.service.generation import Timing
from batcher.service.records import Route
from batcher.service.replying import reply_headers
from batcher.service.safety.contract import CheckContext, Finding
from batcher.service.safety.stage import SafetyStage, error_of
from batcher.service.wire.dialect import Dialect
from batcher.service.wire.native import NATIVE
from batcher.service.wire.replies import Reply
from batcher.service.wire.run import decode_run, encode_run
from batcher.types import Outcome, Usage

OnResult: TypeAlias = Callable[[Reply | ServiceError], None]


class Pending(Protocol):
    """A call that was submitted."""

    def cancel(self) -> None:
        """The caller is gone: no result from now on. Nothing happens if it had one."""


class Endpoint(Protocol):
    """Who answers one route's calls in one grammar without a task."""

    front: Front
    route: Route
    dialect: Dialect
    model_id: str
    """The model that every call is for; empty where a call's body names it."""
    takes_large: bool
    """Whether calls with large bodies may be submitted; if not, ASGI has a way for them."""

    def submit(self, passage: Passage, body: bytes | bytearray, on_result: OnResult) -> Pending | None:
        """Sends a call on its way; `on_result` is called once, perhaps at once. To end the passage is the front end's.

        None: nothing was sent, as only ASGI has a way for this call. Raises ServiceError, and then nothing was sent.
        """


class RunsEndpoint(Endpoint, Protocol):
    """What the two front ends of `POST /v1/run` share: it has a way for each call."""

    def submit(
        self, passage: Passage, body: bytes | bytearray, on_result: OnResult, *, idempotency: str | None = None
    ) -> Pending:
        """`idempotency` is the digest of its Idempotency-Key."""


class RunEndpoint:
    """What is asked, and what is replied."""

    route = Route.RUN
    dialect: Dialect = NATIVE
    takes_large = True

    def __init__(self, *, driver: Driver, front: Front, model_id: str) -> None:
        self.driver = driver
        self.front = front
        self.model_id = model_id

    def submit(
        self, passage: Passage, body: bytes | bytearray, on_result: OnResult, *, idempotency: str | None = None
    ) -> Pending:
        input_ = decode_run(body).input
        call = _Call(self, passage, input_, on_result, idempotency)
        call.start()
        return call


class NoRunEndpoint:
    """In continuous mode nobody runs batches: says where to ask instead."""

    route = Route.RUN
    dialect: Dialect = NATIVE
    model_id = ""
    takes_large = True

    def __init__(self, front: Front) -> None:
        self.front = front

    def submit(
        self, passage: Passage, body: bytes | bytearray, on_result: OnResult, *, idempotency: str | None = None
    ) -> Pending:
        raise NotFound("there is no /v1/run in continuous mode: ask POST /v1/messages, or serve with --mode batch")


class _Call:
    """`_number` is what the driver knows it by, once submitted; `_task` checks texts, where that takes a task."""

    __slots__ = ("_account", "_endpoint", "_input", "_is_over", "_number", "_on_result", "_passage", "_task")

    def __init__(
        self, endpoint: RunEndpoint, passage: Passage, input_: str, on_result: OnResult, idempotency: str | None
    ) -> None:
        self._endpoint = endpoint
        self._passage = passage
        self._input = input_
        self._on_result = on_result
        self._account = Account(endpoint.front, passage, idempotency=idempotency)
        self._number: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def start(self) -> None:
        """Raises ServiceError, and then nothing was begun."""
        safety = self._endpoint.front.safety
        if safety is None:
            self._reserve()
        elif safety.can_check_now(len(self._input)):
            finding = safety.check_input_now(self._context, (self._input,))
            if finding is not None:
                # There is no stop reason in this grammar: either verdict is an error.
                raise error_of(finding)
            self._reserve()
        else:
            self._spawn(lambda: self._check_input(safety))

    def cancel(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        task, self._task = self._task, None  # A task that was cancelled refers to what it was for.
        if task is not None:
            task.cancel()
        has_left = self._number is not None and self._endpoint.driver.cancel(self._number)
        self._give_up(Outcome.CANCELLED, is_computed=has_left or self._has_answer)

    # In.

    @property
    def _context(self) -> CheckContext:
        """For the checks. Made when it is wanted, which is seldom."""
        caller = self._passage.caller
        return CheckContext(tenant=caller.tenant, tier=caller.tier, model=self._passage.model)

    async def _check_input(self, safety: SafetyStage) -> None:
        finding = await safety.check_input(self._context, (self._input,))
        if finding is not None:
            raise error_of(finding)
        self._reserve()

    def _reserve(self) -> None:
        num_input = len(self._input if self._input.isascii() else self._input.encode())
        self._account.reserve(num_input, 0, self._enter)

    def _enter(self, error: ServiceError | None) -> None:
        if error is not None:
            self._refuse(error)
            return
        endpoint, passage = self._endpoint, self._passage
        self._number = endpoint.driver.submit(passage.caller, self._input, passage.num_input, self._on_end)

    # Out.

    def _on_end(self, end: End, run_s: float) -> None:
        if not isinstance(end, Answer):
            self._refuse(end.error)
            return
        self._passage.timing = Timing(end.request.arrived_at, end.departed_at, run_s)
        safety = self._endpoint.front.safety
        if safety is None:
            self._answer(end.output)
        elif safety.can_check_now(len(end.output)):
            self._pass_output(end.output, safety.check_output_now(self._context, end.output).finding)
        else:
            self._spawn(lambda: self._check_output(safety, end.output))

    async def _check_output(self, safety: SafetyStage, output: str) -> None:
        checks = safety.open_output(self._context)
        finding = (await checks.feed(output)).finding if output else None
        finding = finding or (await checks.flush()).finding
        self._pass_output(output, finding)

    def _pass_output(self, output: str, finding: Finding | None) -> None:
        if finding is None:
            self._answer(output)
        else:
            self._refuse(error_of(finding))

    def _answer(self, output: str) -> None:
        passage = self._passage
        passage.num_output = num_output = len(output if output.isascii() else output.encode())
        try:
            self._account.answered(Usage(passage.num_input, num_output), num_charged=0)
        except ServiceError as error:
            self._refuse(error)
            return
        passage.note_first()
        body = encode_run(passage.id, self._input, output)
        self._end(Reply(200, body, passage.shown_id, reply_headers(passage, NATIVE)))

    def _refuse(self, error: ServiceError) -> None:
        self._give_up(Outcome.FAILED, is_computed=self._has_answer)
        self._end(error)

    @property
    def _has_answer(self) -> bool:
        """Whether its batch has answered; that may still be held back."""
        return self._passage.timing is not None

    def _give_up(self, outcome: Outcome, *, is_computed: bool) -> None:
        """There is no answer. What a worker had is charged as an answer's input is; else nothing was done."""
        if is_computed and self._account.is_open:
            self._account.stopped(outcome, Usage(self._passage.num_input, 0), 0)
        self._account.drop()

    def _end(self, result: Reply | ServiceError) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_result(result)

    def _spawn(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self._task = spawn(self._endpoint.front, work, self._refuse)


Work: TypeAlias = Callable[[], Coroutine[None, None, None]]


def spawn(front: Front, work: Work, on_error: Callable[[ServiceError], None]) -> "asyncio.Task[None]":
    """A part of a call that takes a task; `on_error` is told what it raises. Cancelled early, it never begins."""
    return asyncio.get_running_loop().create_task(_guarded(front, work, on_error))


async def _guarded(front: Front, work: Work, on_error: Callable[[ServiceError], None]) -> None:
    try:
        with front.answering():
            await work()
    except ServiceError as error:
        on_error(error)
    except Exception as error:
        log.error("request_failed", exc_info=error)
        on_error(ServerFault("internal error"))
