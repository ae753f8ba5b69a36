"""`run_batch` by static generation: the second link of SPEC S11's chain, with the very model that continuous mode runs.

A batch is prefilled, then decoded step by step until its longest answer ends; slots of shorter ones stand empty meanwhile, and
whoever comes waits for the next batch. That is the point: it is what the other schedulers are compared with, so it is written
out here in its simplest form rather than made of theirs. Each sequence reserves the blocks of prompt + max_tokens, one after
another; inputs that do not fit into memory together run in several rounds.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import count

import msgspec

from backends.base import KvLayout, StepBackend
from backends.generate_wire import GenerateInput, GenerateOutput, context_len, decode_input, encode_output
from backends.models import SMOLLM2, create_model
from batcher.config import Device, Dtype
from batcher.errors import ConfigError
from batcher.types import BLOCK_SIZE, GREEDY, MAX_BATCH_SIZE, FinishReason, Message, ScheduledSequence, Step, Usage

DEFAULT_MAX_TOKENS = 128
"""Of the answer to plain text, which cannot say."""

_MAX_STEP_TOKENS = 2048
"""Prompt tokens of one step: enough to keep a device busy, little enough for its activations."""


class GenerateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: str = SMOLLM2
    dtype: Dtype = Dtype.BFLOAT16
    device: Device = Device.AUTO
    model_settings: dict[str, object] | None = None
    """For the simulated model only."""


class _Generation:
    """One answer in the making. `unseen` are the tokens whose keys and values no step has computed yet."""

    def __init__(self, wanted: GenerateInput, prompt: list[int], is_plain: bool) -> None:
        self.wanted = wanted
        self.is_plain = is_plain
        self.prompt = prompt
        self.unseen = prompt
        self.num_seen = 0
        self.num_sampled = 0
        self.text = bytearray()
        self.finish: FinishReason | None = None
        self.stopped_by: str | None = None
        self._stops = [(text.encode(), text) for text in wanted.stop_sequences]

    @property
    def num_blocks(self) -> int:
        return -(-(len(self.prompt) + self.wanted.max_tokens) // BLOCK_SIZE)

    def add(self, token: int, data: bytes, *, is_stop: bool) -> None:
        """The next token, and the bytes it adds."""
        self.num_sampled += 1
        num_old = len(self.text)
        self.text += data
        if is_stop:
            self.finish = FinishReason.END_TURN
        elif (found := self._find_stop(num_old)) is not None:
            begin, self.stopped_by = found
            del self.text[begin:]
            self.finish = FinishReason.STOP_SEQUENCE
        elif self.num_sampled == self.wanted.max_tokens:
            self.finish = FinishReason.MAX_TOKENS
        else:
            self.unseen = [token]

    def _find_stop(self, num_old: int) -> tuple[int, str] | None:
        """Where the stop sequence begins that ends first, and which it is; of those that end together the longest."""
        found = []
        for stop, text in self._stops:
            begin = self.text.find(stop, max(0, num_old - len(stop) + 1))
            if begin >= 0:
                found.append((begin + len(stop), begin, text))
        return min(found)[1:] if found else None

    def output(self) -> str:
        assert self.finish is not None
        text = self.text.decode("utf-8", "replace")
        if self.is_plain:
            return text
        return encode_output(GenerateOutput(text, self.finish, Usage(len(self.prompt), self.num_sampled), self.stopped_by))


class GenerateBackend:
    """A BatchBackend. Raises ConfigError for a model that cannot be."""

    def __init__(self, settings: GenerateSettings) -> None:
        self._model = create_model(
            settings.model, dtype=settings.dtype, device=settings.device, settings=settings.model_settings
        )
        info = self._model.info
        num_blocks = info.kv_bytes // (info.kv_bytes_per_token * BLOCK_SIZE)
        # More blocks than 50 sequences can reserve are of no use; fewer than one can are as many as its context may have.
        self._num_blocks = min(num_blocks, MAX_BATCH_SIZE * -(-info.context_len // BLOCK_SIZE))
        self._max_model_len = context_len(info)
        if self._max_model_len < 2:
            raise ConfigError(f"model {settings.model!r} has no memory to spare for keys and values")
        self._backend: StepBackend | None = None
        self._ids = count(1)
        self._step_ids = count(1)

    def load(self) -> None:
        self._backend = self._model.make_backend()
        self._backend.load(KvLayout(self._num_blocks, MAX_BATCH_SIZE, self._max_model_len, _MAX_STEP_TOKENS))

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()

    def run_batch(self, inputs: list[str]) -> list[str]:
        """Raises ValueError, before anything is computed, if one of the inputs cannot be answered."""
        generations = [self._parse(text) for text in inputs]
        for together in self._rounds(generations):
            self._generate(together)
        return [generation.output() for generation in generations]

    def _parse(self, text: str) -> _Generation:
        wanted = decode_input(text)
        is_plain = wanted is None
        if wanted is None:
            wanted = GenerateInput((Message("user", text),), DEFAULT_MAX_TOKENS, GREEDY)
        prompt = self._model.tokenizer.render(wanted.messages)
        num_left = self._max_model_len - len(prompt)
        if is_plain and num_left > 0:
            wanted = msgspec.structs.replace(wanted, max_tokens=min(wanted.max_tokens, num_left))
        if wanted.max_tokens > num_left:
            raise ValueError(f"{len(prompt)} + {wanted.max_tokens} tokens are more than {self._max_model_len}")
        return _Generation(wanted, prompt, is_plain)

    def _rounds(self, generations: Sequence[_Generation]) -> Iterator[list[_Generation]]:
        """As many at once as the blocks hold, in order."""
        together: list[_Generation] = []
        num_free = self._num_blocks
        for generation in generations:
            if generation.num_blocks > num_free:
                yield together
                together, num_free = [], self._num_blocks
            together.append(generation)
            num_free -= generation.num_blocks
        yield together

    def _generate(self, together: list[_Generation]) -> None:
        tables: list[array[int]] = []
        first = 0
        for generation in together:
            tables.append(array("i", range(first, first + generation.num_blocks)))
            first += generation.num_blocks
        slots = [(slot, next(self._ids), generation, tables[slot]) for slot, generation in enumerate(together)]
        while any(generation.finish is None for generation in together):
            # Prompts first, in as many steps as they take; then one token of each in every step.
            is_prefill = any(generation.num_sampled == 0 for generation in together)
            self._step([slot for slot in slots if slot[2].finish is None and (slot[2].num_sampled == 0) == is_prefill])

    def _step(self, slots: list[tuple[int, int, _Generation, "array[int]"]]) -> None:
        scheduled: list[ScheduledSequence] = []
        sampled: list[_Generation] = []
        num_left = _MAX_STEP_TOKENS
        for slot, sequence_id, generation, table in slots:
            tokens = generation.unseen[:num_left]
            if not tokens:
                break
            num_left -= len(tokens)
            is_sampled = len(tokens) == len(generation.unseen)
            scheduled.append(
                ScheduledSequence(sequence_id, slot, tokens, generation.num_seen, table, is_sampled, generation.wanted.sampling)
            )
            generation.unseen = generation.unseen[len(tokens) :]
            generation.num_seen += len(tokens)
            if is_sampled:
                sampled.append(generation)
        assert self._backend is not None
        self._backend.launch(Step(next(self._step_ids), tuple(scheduled), _MAX_STEP_TOKENS - num_left))
        tokenizer = self._model.tokenizer
        for generation, token in zip(sampled, self._backend.collect(), strict=True):
            is_stop = token in tokenizer.stop_ids and not generation.wanted.ignores_stop
            generation.add(token, b"" if is_stop else tokenizer.token_bytes(token), is_stop=is_stop)

    def __repr__(self) -> str:
        return f"<GenerateBackend {self._model.info.id}>"
