"""How batch mode answers conversations: through the very `run_batch` that its plain contract uses, whatever stands behind it.

An answer comes whole, so a stream of it has one delta. The backend `generate` knows conversations, and its tokens are the
model's. Any other backend knows only text: it gets the last user message, its tokens are bytes of UTF-8, and max_tokens and
stop_sequences are applied to what it returns. It has no sampling, no stop tokens and no context.
"""

from abc import abstractmethod
from collections.abc import Iterator

import msgspec

from backends.generate_wire import GenerateInput, decode_output, encode_input
from batcher.core.effects import Answer
from batcher.errors import InputFailed, InvalidRequest
from batcher.service.auth import Caller
from batcher.service.callers import OnEvent, OnUsage
from batcher.service.conversation import Conversation, Prepared, default_max_tokens
from batcher.service.driver import Driver, End
from batcher.service.generation import NO_USAGE, Delta, Event, Failed, Finished, Timing
from batcher.service.prompts import Prompter
from batcher.types import FinishReason, Outcome, Usage


class _BatchAnswerer:
    """What both ways have in common: one call of `run_batch` answers a conversation."""

    def __init__(self, driver: Driver, model_id: str, *, context_len: int | None = None) -> None:
        self.model_id = model_id
        self.context_len = context_len
        self.driver = driver
        self._input_tokens: dict[int, int] = {}
        """Of the answers under way, by number."""

    def submit(self, caller: Caller, prepared: Prepared, on_event: OnEvent) -> int:
        """Raises nothing; the gate's refusal is an event."""
        input_ = prepared.prompt
        assert isinstance(input_, str)
        number = 0

        def on_end(end: End, run_s: float) -> None:
            self._input_tokens.pop(number, None)
            for event in self._events(end, prepared, run_s):
                on_event(event)

        num_bytes = len(input_) if input_.isascii() else len(input_.encode())
        number = self.driver.submit(caller, input_, num_bytes, on_end)
        if self.driver.is_live(number):
            self._input_tokens[number] = prepared.num_input_tokens
        return number

    def cancel(self, number: int, on_usage: OnUsage) -> None:
        num_input = self._input_tokens.pop(number, None)
        if num_input is not None:
            on_usage(usage_of_cancelled(num_input, has_left=self.driver.cancel(number)))

    @abstractmethod
    def _events(self, end: End, prepared: Prepared, run_s: float) -> Iterator[Event]:
        """What an end of the driver's means to whoever waits."""


class GenerateAnswerer(_BatchAnswerer):
    """By the backend `generate`, which counts the same tokens of the same prompt."""

    def __init__(self, driver: Driver, *, model_id: str, prompter: Prompter) -> None:
        super().__init__(driver, model_id, context_len=prompter.context_len)
        self._prompter = prompter

    async def prepare(self, conversation: Conversation, *, room: float) -> Prepared:
        prompt, max_tokens = await self._prompter.prepare(conversation, room=room)
        input_ = encode_input(
            GenerateInput(
                messages=conversation.messages,
                max_tokens=max_tokens,
                sampling=conversation.sampling,
                stop_sequences=conversation.stop_sequences,
                ignores_stop=conversation.ignores_stop,
            )
        )
        return Prepared(conversation=conversation, prompt=input_, num_input_tokens=len(prompt), max_tokens=max_tokens)

    async def count(self, conversation: Conversation) -> int:
        return await self._prompter.count(conversation)

    def _events(self, end: End, prepared: Prepared, run_s: float) -> Iterator[Event]:
        return _generated(end, run_s)


def _generated(end: End, run_s: float) -> Iterator[Event]:
    if not isinstance(end, Answer):
        yield Failed(end.outcome, end.error, NO_USAGE)
        return
    try:
        output = decode_output(end.output)
    except ValueError:
        yield Failed(Outcome.FAILED, InputFailed("the backend's answer could not be read"), NO_USAGE)
        return
    timing = Timing(end.request.arrived_at, end.departed_at, run_s)
    yield from _in_two(Finished(output.text, output.finish, output.usage, output.stop_sequence, timing))


class TextAnswerer(_BatchAnswerer):
    """By a backend that knows only text; `model_id` is its name."""

    def __init__(self, driver: Driver, *, model_id: str) -> None:
        super().__init__(driver, model_id)

    async def prepare(self, conversation: Conversation, *, room: float) -> Prepared:
        return self.prepare_now(conversation, room=room)

    def prepare_now(self, conversation: Conversation, *, room: float) -> Prepared:
        """`prepare`, which here waits for nothing."""
        input_ = _last_of_user(conversation)
        num_input = len(input_.encode())
        return Prepared(
            conversation=conversation,
            prompt=input_,
            num_input_tokens=num_input,
            max_tokens=conversation.max_tokens or default_max_tokens(num_input, room),
            counts_bytes=True,
        )

    async def count(self, conversation: Conversation) -> int:
        return len(_last_of_user(conversation).encode())

    def whole(self, end: Answer, prepared: Prepared, run_s: float) -> Finished:
        """The answer to what the driver was asked for; all of its text is with the end."""
        text, finish, stop, num_tokens = cut(end.output, prepared.max_tokens, prepared.conversation.stop_sequences)
        timing = Timing(end.request.arrived_at, end.departed_at, run_s)
        return Finished(text, finish, Usage(prepared.num_input_tokens, num_tokens), stop, timing)

    def _events(self, end: End, prepared: Prepared, run_s: float) -> Iterator[Event]:
        if isinstance(end, Answer):
            yield from _in_two(self.whole(end, prepared, run_s))
        else:
            yield Failed(end.outcome, end.error, NO_USAGE)


def _last_of_user(conversation: Conversation) -> str:
    """Raises InvalidRequest."""
    for message in reversed(conversation.messages):
        if message.role == "user":
            return message.content
    raise InvalidRequest("messages has no message of the role user, which is all that this model reads")


def _in_two(whole: Finished) -> Iterator[Event]:
    """As an engine tells it: the text, then the end."""
    if whole.text:
        yield Delta(whole.text, whole.usage.output_tokens, whole.timing)
    yield msgspec.structs.replace(whole, text="")


def usage_of_cancelled(num_input: int, *, has_left: bool) -> Usage:
    """What was computed for a caller who has left: its input, if a worker was sent it."""
    return Usage(num_input, 0) if has_left else NO_USAGE


def cut(output: str, max_tokens: int, stop_sequences: tuple[str, ...]) -> tuple[str, FinishReason, str | None, int]:
    """The text to deliver, why it ends, by which stop sequence, and its tokens: bytes, a stop sequence's among them.

    At most max_tokens bytes of whole characters, and nothing from the stop sequence on that ends first (of those that end
    together, the longest).
    """
    if output.isascii() and not stop_sequences:
        text = output[:max_tokens]
        return text, FinishReason.END_TURN if text == output else FinishReason.MAX_TOKENS, None, len(text)
    data = output.encode()
    text = data[:max_tokens].decode("utf-8", "ignore")
    found = [(begin + len(stop), begin, stop) for stop in stop_sequences if (begin := text.find(stop)) >= 0]
    if found:
        end, begin, stop = min(found)
        return text[:begin], FinishReason.STOP_SEQUENCE, stop, len(text[:end].encode())
    finish = FinishReason.MAX_TOKENS if len(data) > max_tokens else FinishReason.END_TURN
    return text, finish, None, len(text.encode())
