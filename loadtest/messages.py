"""Asks `POST /v1/messages`: prompts and answers of drawn lengths, shared prefixes, and conversations of several turns.

Everything that a request asks for is drawn from the run's seed by the number of its conversation and its turn, in streams
of their own: so two servers, and two runs, are asked the same, whatever they answer, drop or refuse. Only the history in a
later turn's prompt differs, since it carries the answer that really came: a prefix cache would otherwise be asked about
tokens that it never made.
"""

from array import array
from collections.abc import Iterator, Sequence

import msgspec

from batcher.errors import ConfigError
from batcher.sim.lengths import Lengths
from batcher.sim.workload import stream
from loadtest.answers import StreamedAnswer, WholeAnswer
from loadtest.prompts import Prompts, TokenUnit
from loadtest.samples import Samples
from loadtest.talk import Exchange
from loadtest.target import Check, SplitUrl, Target, render_head, split_url
from loadtest.tokens import Tokens

MAX_TURNS = 1000
MAX_PREFIX_TOKENS = 1_000_000
MAX_PREFIX_GROUPS = 100_000

_FIRST_PREFIX = 1 << 23
"""The number of the first prefix among all texts: far above those of requests' own texts, so that none begins alike."""


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a run ask for."""

    prompt_tokens: Lengths
    """Of each turn's own text. The shared prefix comes on top; so does, in later turns, the history."""
    output_tokens: Lengths
    """`max_tokens`: an answer may be shorter, and what came is reported."""
    model: str = "smollm2"
    max_prompt_tokens: int | None = None
    """Longer draws are cut down to it."""
    unit: TokenUnit = TokenUnit.WORD
    shared_prefix_tokens: int = 0
    prefix_groups: int = 1
    """So many different prefixes; each conversation begins with one of them, drawn evenly."""
    turns: int = 1
    think_time_s: float = 0.0
    """From the end of an answer to the instant at which the next turn is due."""
    temperature: float = 0.0
    """Above 0 each request carries a sampling seed of its own, drawn from the run's, so that it can be asked again."""
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] = ()
    is_streamed: bool = True

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("turns", self.turns, 1, MAX_TURNS),
            ("prefix groups", self.prefix_groups, 1, MAX_PREFIX_GROUPS),
            ("tokens of the shared prefix", self.shared_prefix_tokens, 0, MAX_PREFIX_TOKENS),
            ("seconds of think time", self.think_time_s, 0.0, 3600.0),
            ("temperature", self.temperature, 0.0, 100.0),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name}: from {low:,} to {high:,}, not {value}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ConfigError(f"the most prompt tokens must be 1 or more, not {self.max_prompt_tokens}")
        if not self.model:
            raise ConfigError("the model must have a name")


class Script:
    """What each turn of each conversation asks for, drawn in order and kept: 12 bytes a turn."""

    def __init__(self, messages: Messages, *, seed: int) -> None:
        self._turns = messages.turns
        self._max_prompt_tokens = messages.max_prompt_tokens
        self._num_groups = messages.prefix_groups
        self._prompt_draws = messages.prompt_tokens.draws(stream(seed, "prompt_tokens"))
        self._output_draws = messages.output_tokens.draws(stream(seed, "output_tokens"))
        self._group_rng = stream(seed, "prefix_groups")
        self._prompt_tokens = array("I")
        self._max_tokens = array("I")
        self._groups = array("I")

    def turn(self, conversation: int, turn: int) -> tuple[int, int]:
        """(prompt tokens, most output tokens)."""
        place = conversation * self._turns + turn
        _draw_up_to(place, self._prompt_tokens, self._prompt_draws)
        _draw_up_to(place, self._max_tokens, self._output_draws)
        num = self._prompt_tokens[place]
        return (num if self._max_prompt_tokens is None else min(num, self._max_prompt_tokens)), self._max_tokens[place]

    def group(self, conversation: int) -> int:
        """Which of the shared prefixes the conversation begins with."""
        while len(self._groups) <= conversation:
            self._groups.append(self._group_rng.randrange(self._num_groups))
        return self._groups[conversation]


class MessagesTalk:
    """All exchanges of a run. Keeps the history of each conversation that goes on, and forgets it when it ends."""

    def __init__(self, target: Target, messages: Messages, samples: Samples, *, seed: int) -> None:
        assert samples.tokens is not None
        self._address = split_url(target.url)
        self._messages = messages
        self._samples = samples
        self._tokens: Tokens = samples.tokens
        self._heads = [render_head(target, sender.key, self._address) for sender in samples.senders]
        self._script = Script(messages, seed=seed)
        self._prompts = Prompts(seed=seed, unit=messages.unit)
        self._sampling_seed = stream(seed, "sampling").getrandbits(31)
        self._histories: dict[int, list[dict[str, str]]] = {}
        """By conversation: its messages so far, an answer last; those alone that wait for their next turn."""

    @property
    def address(self) -> SplitUrl:
        return self._address

    def begin(self, row: int) -> tuple[bytes, Exchange]:
        tokens, settings = self._tokens, self._messages
        conversation, turn = tokens.conversation[row], tokens.turn[row]
        num_prompt_tokens, max_tokens = self._script.turn(conversation, turn)
        text = self._prompts.text(conversation * settings.turns + turn, num_prompt_tokens)
        if turn == 0 and settings.shared_prefix_tokens:
            prefix = self._prompts.text(_FIRST_PREFIX + self._script.group(conversation), settings.shared_prefix_tokens)
            text = f"{prefix} {text}" if settings.unit is TokenUnit.WORD else prefix + text
        asked = [*self._histories.pop(conversation, ()), {"role": "user", "content": text}]
        tokens.max_tokens[row] = max_tokens
        listener = _History(self._histories, conversation, asked) if turn + 1 < settings.turns else None
        answer = (StreamedAnswer if settings.is_streamed else WholeAnswer)(tokens, row, listener)
        body = msgspec.json.encode(self._body(conversation, turn, asked, max_tokens))
        return self._heads[self._samples.sender[row]] + b"content-length: %d\r\n\r\n" % len(body) + body, answer

    def _body(self, conversation: int, turn: int, asked: Sequence[dict[str, str]], max_tokens: int) -> dict[str, object]:
        settings = self._messages
        body: dict[str, object] = {
            "model": settings.model,
            "messages": asked,
            "max_tokens": max_tokens,
            "temperature": settings.temperature,
            "stream": settings.is_streamed,
        }
        if settings.top_p is not None:
            body["top_p"] = settings.top_p
        if settings.top_k is not None:
            body["top_k"] = settings.top_k
        if settings.stop_sequences:
            body["stop_sequences"] = settings.stop_sequences
        if settings.temperature > 0.0:
            body["seed"] = (self._sampling_seed + conversation * settings.turns + turn) % 2**31
        return body


class _History:
    """Puts a good answer behind what was asked. A turn without one has no next, and takes its history with it."""

    __slots__ = ("_asked", "_conversation", "_histories")

    def __init__(self, histories: dict[int, list[dict[str, str]]], conversation: int, asked: list[dict[str, str]]) -> None:
        self._histories = histories
        self._conversation = conversation
        self._asked = asked

    def take_answer(self, text: str) -> None:
        self._histories[self._conversation] = [*self._asked, {"role": "assistant", "content": text}]


def messages_target(url: str, *, path: str = "/v1/messages", headers: Sequence[tuple[str, str]] = ()) -> Target:
    """Where the native grammar of SPEC S4 is spoken, with keys in x-api-key."""
    return Target(url=url.rstrip("/") + path, body="", headers=(("x-api-key", "{key}"), *headers), check=Check.NONE)


def _draw_up_to(place: int, drawn: "array[int]", draws: Iterator[int]) -> None:
    while len(drawn) <= place:
        drawn.append(next(draws))
