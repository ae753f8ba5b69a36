"""One answer on its way from whoever computes it to whoever asked: checked, counted, written down.

begin ─> input checked ─> prompt prepared ─> room reserved ─> submitted
take  ─> events as they come, what may go out of them
close ─> however it ended, the account is closed and nothing is computed for nobody
"""

import asyncio
import sys
from collections.abc import Callable
from math import inf

import msgspec

from batcher.errors import RequestTimeout
from batcher.service.account import Account
from batcher.service.conversation import Answerer, Conversation, Prepared
from batcher.service.delivery import Delivery
from batcher.service.front import Front, Passage
from batcher.service.generation import NO_USAGE, Cancelled, Delta, Event, Failed, Finished
from batcher.service.safety.contract import CheckContext, Verdict
from batcher.service.safety.stage import AnswerGuard, error_of
from batcher.types import FinishReason, Outcome, Usage

MAX_UNTAKEN_BYTES = 2 * 2**20
"""Of a stream's events that its client does not take, as they are in memory; more ends it. Some 18,000 tokens, minutes of any
model's work."""
_EVENT_BYTES = 64
"""Of each event beside its text."""


class Piece(msgspec.Struct, frozen=True):
    """What may go out now, and the end if this is it."""

    text: str
    end: Finished | Failed | None = None


class _Inbox:
    """The events of one answer, from whoever makes them to the task that sends them: together, if they came together."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._has_some = asyncio.Event()
        self.num_bytes = 0
        """Of what was not taken yet. Text alone would not do: an event of one letter takes a hundred times as much."""

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._has_some.set()
        if isinstance(event, Delta):
            self.num_bytes += _EVENT_BYTES + sys.getsizeof(event.text)

    async def wait(self) -> None:
        """Until something has come."""
        await self._has_some.wait()

    def take(self) -> list[Event]:
        """All that has come."""
        self._has_some.clear()
        self.num_bytes = 0
        events, self._events = self._events, []
        return events


class Answering:
    """Belongs to the task that takes from it. `_number` is what the answerer knows it by, once submitted."""

    def __init__(self, front: Front, answerer: Answerer, passage: Passage, *, idempotency: str | None = None) -> None:
        self._front = front
        self._answerer = answerer
        self._passage = passage
        self.account = Account(front, passage, idempotency=idempotency)
        self._inbox = _Inbox()
        self._end: Finished | Failed | None = None
        """The answerer's last word, once it has come."""
        self._num_computed = 0
        self._number: int | None = None
        self._prepared: Prepared | None = None
        self._output: AnswerGuard | None = None
        self._is_streamed = passage.is_streamed
        self._is_overfull = False
        self._has_text = False
        """Whether something of the answer may have been sent: then a stream has no status any more, and ends as one."""
        self._delivery = Delivery(counts_bytes=False)
        """Of what was taken."""
        self._num_delivered = 0
        """Of what was sent."""
        self._is_finished = False
        self._is_closed = False

    @property
    def num_input_tokens(self) -> int:
        assert self._prepared is not None
        return self._prepared.num_input_tokens

    async def begin(self, conversation: Conversation) -> None:
        """Raises ServiceError; cancelled or raising, `close` is still to be called."""
        safety = self._front.safety
        if safety is not None:
            caller = self._passage.caller
            context = CheckContext(tenant=caller.tenant, tier=caller.tier, model=self._answerer.model_id)
            finding = await safety.check_input(context, [message.content for message in conversation.messages])
            if finding is not None:
                raise error_of(finding)
            self._output = safety.open_output(context)
        room = inf if conversation.max_tokens else self._front.limiter.room(self._passage.caller)
        self._prepared = prepared = await self._answerer.prepare(conversation, room=room)
        self._delivery = Delivery(counts_bytes=prepared.counts_bytes)
        await self.account.reserved(prepared.num_input_tokens, prepared.max_tokens)
        self._number = self._answerer.submit(self._passage.caller, prepared, self._on_event)

    def _on_event(self, event: Event) -> None:
        assert not isinstance(event, Cancelled)
        if isinstance(event, Delta):
            self._passage.note_first()
            self._num_computed += event.num_tokens
            if event.timing is not None:
                self._passage.timing = event.timing
        else:
            self._end = event
            if isinstance(event, Finished):
                self._passage.timing = event.timing
        if self._is_overfull:
            return
        # Asked before this event is added: an answer that comes in one piece was not left untaken, however long it is.
        if self._is_streamed and self._inbox.num_bytes > MAX_UNTAKEN_BYTES:
            self._give_up()
        else:
            self._inbox.put(event)

    def _give_up(self) -> None:
        """The client takes nothing: nothing more is computed for it, and nothing kept. It is cut off when its patience is over;
        if it reads on before that, it is told."""
        self._is_overfull = True
        self._inbox.take()
        error = RequestTimeout("the stream was not read for too long: its answer was given up")
        self._inbox.put(Failed(Outcome.CANCELLED, error, NO_USAGE))
        asyncio.get_running_loop().call_soon(self.close)

    async def wait(self) -> None:
        """Until there is something to take. May be cancelled, and nothing is lost."""
        await self._inbox.wait()

    async def take(self) -> list[Piece]:
        """What has come, at least one piece; waits for it. The last of all has the end.

        A stream of which nothing was taken for too long fails, without what had come meanwhile. Cancelled, this loses what it
        took.
        """
        await self._inbox.wait()
        pieces: list[Piece] = []
        events = self._inbox.take()
        for event in events:
            assert not isinstance(event, Cancelled)
            pieces.append(await self._check(event))
            self._has_text = self._has_text or bool(pieces[-1].text)
            if pieces[-1].end is not None:
                break
        return pieces

    async def _check(self, event: Delta | Finished | Failed) -> Piece:
        """What may go out of an event."""
        if isinstance(event, Failed):
            return Piece("", event)
        self._delivery.add(event.text, self._count(event))
        if self._output is None:
            self._delivery.leave(event.text)
            return Piece(event.text, None if isinstance(event, Delta) else event)
        checked = await self._output.feed(event.text) if event.text else None
        text, finding = ("", None) if checked is None else (checked.text, checked.finding)
        if isinstance(event, Finished) and finding is None:
            last = await self._output.flush()
            text, finding = text + last.text, last.finding
        if finding is None:
            self._delivery.leave(text)
            return Piece(text, event if isinstance(event, Finished) else None)
        if finding.verdict is Verdict.REFUSE and not (self._is_streamed and (self._has_text or text)):
            return Piece("", Failed(Outcome.FAILED, error_of(finding), NO_USAGE))
        self._delivery.leave(text)
        return Piece(text, Finished("", FinishReason.REFUSAL, Usage(self.num_input_tokens, self._delivery.num_tokens)))

    def _count(self, event: Delta | Finished) -> int:
        """Its tokens: of an end, those that no delta has told of."""
        return event.num_tokens if isinstance(event, Delta) else event.usage.output_tokens - self._num_computed

    def note_delivered(self) -> None:
        """What was taken is sent."""
        self._num_delivered = self._delivery.num_tokens

    def finish(self, end: Finished) -> None:
        """The answer is whole and its last bytes are about to be sent. Raises Overloaded if it must be recorded and cannot."""
        self._is_finished = True
        self._passage.num_output = end.usage.output_tokens
        # What an engine computes until it hears that a check has ended the answer is not waited for: the record comes first.
        computed = self._num_computed if not isinstance(self._end, Finished) else self._end.usage.output_tokens
        self.account.answered(end.usage, num_computed=computed)

    def close(self, outcome: Outcome = Outcome.CANCELLED) -> None:
        """However it ended; what is still computed is not waited for. Only the first call counts: its books may stay open until
        it is known what was computed."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_finished or not self.account.is_open:
            self._stop_computing(None)
            self.account.drop()
            return
        self._passage.num_output = self._num_delivered
        end = self._end
        if end is not None or self._number is None:
            self._stopped(outcome, NO_USAGE if end is None else end.usage)
        else:
            self._stop_computing(lambda usage: self._stopped(outcome, usage))

    def _stopped(self, outcome: Outcome, computed: Usage) -> None:
        self.account.stopped(outcome, computed, self._num_delivered)

    def _stop_computing(self, on_usage: Callable[[Usage], None] | None) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._answerer.cancel(number, on_usage or _forget)


def _forget(usage: Usage) -> None:
    """The account knows already."""
