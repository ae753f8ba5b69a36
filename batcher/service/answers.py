"""The answers under way in one engine: from sampled tokens to text, and what is measured of each on the way.

Each answer that was begun has exactly one end, and with it its record is gone. Usage is counted here from token ids, whether
or not they made text (SPEC S3.5).
"""

from collections.abc import Callable

from batcher.core.effects import Emit
from batcher.core.replica.text import TextStream
from batcher.errors import ServerFault, ServiceError
from batcher.service import log
from batcher.service.generation import NO_USAGE, Cancelled, Delta, Events, Failed, Finished, GenerationRequest, Timing
from batcher.service.generation_meters import EngineMeters
from batcher.types import FinishReason, Outcome, Step, Usage


class _Answer:
    """An answer that has not ended."""

    __slots__ = (
        "arrived_at",
        "first_token_at",
        "num_prompt_tokens",
        "num_tokens",
        "num_told",
        "started_at",
        "stream",
        "tier",
    )

    def __init__(self, request: GenerationRequest, arrived_at: float) -> None:
        # Not the request itself: its prompt is the scheduler's from now on.
        self.tier = request.tier
        self.num_prompt_tokens = len(request.prompt)
        self.stream = TextStream(request.stop_sequences)
        self.arrived_at = arrived_at
        self.started_at: float | None = None
        """When the first step that computes some of its prompt was launched."""
        self.first_token_at = 0.0
        self.num_tokens = 0
        self.num_told = 0
        """Of `num_tokens`, those that a Delta has told of."""

    def usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_tokens) if self.num_tokens else NO_USAGE

    def timing(self) -> Timing | None:
        return None if self.started_at is None else Timing(self.arrived_at, self.started_at)


class Answers:
    """`_live` has every answer that was begun and has not ended. What callers are to be told is appended to `events`."""

    def __init__(self, token_bytes: Callable[[int], bytes], meters: EngineMeters) -> None:
        self._token_bytes = token_bytes
        self._meters = meters
        self._live: dict[int, _Answer] = {}
        self.on_start: Callable[[int], None] | None = None
        """Told the id of whatever starts, on the engine's own thread."""

    def __len__(self) -> int:
        return len(self._live)

    def has_started(self, sequence_id: int) -> bool:
        """Whether a step has computed some of its prompt; not, if it is not live. Any thread may ask."""
        answer = self._live.get(sequence_id)
        return answer is not None and answer.started_at is not None

    def begin(self, sequence_id: int, request: GenerationRequest, arrived_at: float) -> None:
        assert sequence_id not in self._live
        self._live[sequence_id] = _Answer(request, arrived_at)

    def note_starts(self, step: Step, *, now: float) -> None:
        """This step is launched now: for some of its sequences it is the first."""
        for scheduled in step.sequences:
            answer = self._live[scheduled.sequence_id]
            if answer.started_at is None:
                answer.started_at = now
                self._meters.tiers[answer.tier].queue_s.observe(now - answer.arrived_at)
                self._meters.num_input_tokens += answer.num_prompt_tokens
                if self.on_start is not None:
                    self.on_start(scheduled.sequence_id)

    def add_token(self, effect: Emit, now: float, events: Events) -> bool:
        """Takes an answer's next token. Whether it ended the answer while the scheduler does not know: the text did."""
        sequence_id = effect.sequence_id
        answer = self._live[sequence_id]
        try:
            finish = self._read(answer, effect, now, events)
        except Exception as error:
            # A token that the tokenizer does not know is this answer's trouble only.
            log.error("text_failed", exc_info=error, token=effect.token)
            self.fail(sequence_id, Outcome.FAILED, ServerFault("what the model gave is no text"), events)
            return effect.finish is None
        if finish is not None:
            self._finish(sequence_id, answer, finish, now)
        return finish is not None and effect.finish is None

    def _read(self, answer: _Answer, effect: Emit, now: float, events: Events) -> FinishReason | None:
        """Turns the token into text and says so. Why the answer ends with it, if it does."""
        stream, finish = answer.stream, effect.finish
        answer.num_tokens += 1
        self._meters.num_output_tokens += 1
        if answer.num_tokens == 1:
            answer.first_token_at = now
            self._meters.tiers[answer.tier].ttft_s.observe(now - answer.arrived_at)
        # What ends a turn is no part of it, however the tokenizer would spell it.
        text = "" if finish is FinishReason.END_TURN else stream.feed(self._token_bytes(effect.token))
        if finish is not None:
            text += stream.flush()
        if stream.stopped:
            finish = FinishReason.STOP_SEQUENCE
        if finish is not None:
            end = Finished(text, finish, answer.usage(), stream.stopped_by, answer.timing())
            events.append((effect.sequence_id, end))
        elif text:
            timing = None if answer.num_told else answer.timing()
            events.append((effect.sequence_id, Delta(text, answer.num_tokens - answer.num_told, timing)))
            answer.num_told = answer.num_tokens
        return finish

    def _finish(self, sequence_id: int, answer: _Answer, finish: FinishReason, now: float) -> None:
        del self._live[sequence_id]
        meters = self._meters.tiers[answer.tier]
        meters.finishes[finish] += 1
        meters.e2e_s.observe(now - answer.arrived_at)
        if answer.num_tokens > 1:
            meters.tpot_s.observe((now - answer.first_token_at) / (answer.num_tokens - 1))

    def fail(self, sequence_id: int, outcome: Outcome, error: ServiceError, events: Events) -> None:
        answer = self._live.pop(sequence_id)
        events.append((sequence_id, Failed(outcome, error, answer.usage())))

    def cancel(self, sequence_id: int, events: Events) -> bool:
        """Whether it was live."""
        answer = self._live.pop(sequence_id, None)
        if answer is None:
            return False
        events.append((sequence_id, Cancelled(answer.usage())))
        return True
