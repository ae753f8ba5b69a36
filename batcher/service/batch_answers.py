"""How batch mode answers conversations: through the very `run_batch` that its plain contract uses, whatever stands behind it.

An answer comes whole, so a stream of it has one delta. The backend `generate` knows conversations, and its tokens are the
model's. Any other backend knows only text: it gets the last user message, its tokens are bytes of UTF-8, and max_tokens and
stop_sequences are applied to what it returns. It has no sampling and no context.
"""

from collections.abc import Iterator

from backends.generate_wire import GenerateInput, decode_output, encode_input
from batcher.core.effects import Answer
from batcher.errors import InputFailed, InvalidRequest
from batcher.service.auth import Caller
from batcher.service.callers import OnEvent
from batcher.service.conversation import Conversation
from batcher.service.driver import Driver, End
from batcher.service.generation import NO_USAGE, Delta, Event, Failed, Finished
from batcher.service.prompts import Prompter
from batcher.types import FinishReason, Outcome, Usage


class GenerateAnswerer:
    """By the backend `generate`, which counts the same tokens of the same prompt."""

    def __init__(self, driver: Driver, *, model_id: str, prompter: Prompter) -> None:
        self.model_id = model_id
        self._driver = driver
        self._prompter = prompter

    async def ask(self, caller: Caller, conversation: Conversation, on_event: OnEvent) -> int:
        await self._prompter.encode(conversation)
        input_ = encode_input(
            GenerateInput(
                messages=conversation.messages,
                max_tokens=conversation.max_tokens,
                sampling=conversation.sampling,
                stop_sequences=conversation.stop_sequences,
            )
        )

        def on_end(end: End) -> None:
            for event in _generated(end):
                on_event(event)

        return self._driver.submit(caller, input_, len(input_), on_end)

    def cancel(self, number: int) -> None:
        self._driver.cancel(number)


def _generated(end: End) -> Iterator[Event]:
    if not isinstance(end, Answer):
        yield Failed(end.outcome, end.error, NO_USAGE)
        return
    try:
        output = decode_output(end.output)
    except ValueError:
        yield Failed(Outcome.FAILED, InputFailed("the backend's answer could not be read"), NO_USAGE)
        return
    yield from _whole(output.text, output.finish, output.usage, output.stop_sequence)


class TextAnswerer:
    """By a backend that knows only text; `model_id` is its name."""

    def __init__(self, driver: Driver, *, model_id: str) -> None:
        self.model_id = model_id
        self._driver = driver

    async def ask(self, caller: Caller, conversation: Conversation, on_event: OnEvent) -> int:
        input_ = next((message.content for message in reversed(conversation.messages) if message.role == "user"), None)
        if input_ is None:
            raise InvalidRequest("messages has no message of the role user, which is all that this model reads")
        num_bytes = len(input_.encode())

        def on_end(end: End) -> None:
            if isinstance(end, Answer):
                text, finish, stop, num_tokens = cut(end.output, conversation.max_tokens, conversation.stop_sequences)
                for event in _whole(text, finish, Usage(num_bytes, num_tokens), stop):
                    on_event(event)
            else:
                on_event(Failed(end.outcome, end.error, NO_USAGE))

        return self._driver.submit(caller, input_, num_bytes, on_end)

    def cancel(self, number: int) -> None:
        self._driver.cancel(number)


def _whole(text: str, finish: FinishReason, usage: Usage, stop_sequence: str | None) -> Iterator[Event]:
    if text:
        yield Delta(text, usage.output_tokens)
    yield Finished("", finish, usage, stop_sequence)


def cut(output: str, max_tokens: int, stop_sequences: tuple[str, ...]) -> tuple[str, FinishReason, str | None, int]:
    """The text to deliver, why it ends, by which stop sequence, and its tokens: bytes, a stop sequence's among them.

    At most max_tokens bytes of whole characters, and nothing from the stop sequence on that ends first (of those that end
    together, the longest).
    """
    data = output.encode()
    text = data[:max_tokens].decode("utf-8", "ignore")
    found = [(begin + len(stop), begin, stop) for stop in stop_sequences if (begin := text.find(stop)) >= 0]
    if found:
        end, begin, stop = min(found)
        return text[:begin], FinishReason.STOP_SEQUENCE, stop, len(text[:end].encode())
    finish = FinishReason.MAX_TOKENS if len(data) > max_tokens else FinishReason.END_TURN
    return text, finish, None, len(text.encode())
