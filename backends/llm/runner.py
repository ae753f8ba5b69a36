"""The StepBackend of our own models: a step becomes tensors, logits become tokens.

What a slot sampled last stays on the device. So where a device works on its own, the scheduler can launch a step whose tokens
it has not seen, and the device goes from one step to the next without waiting for anybody.
"""

from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from backends.base import KvLayout
from backends.llm.config import ModelConfig
from backends.llm.graphs import DecodeGraphs
from backends.llm.model import Transformer
from backends.llm.ops import LayerCache, Ops, StepTensors
from backends.llm.sampler import sample
from backends.llm.step_inputs import StepInputs, build_inputs
from batcher.types import BLOCK_SIZE, GREEDY, PENDING, Sampling, ScheduledSequence, Step

_WARMUP_TOKENS = BLOCK_SIZE
"""Of the step that is run once at load, so that no caller waits for what the first step builds."""


class _Launched(NamedTuple):
    """A step that was launched and not collected."""

    tokens: Tensor | None  # [sampled] int64, on the host
    is_done: torch.cuda.Event | None
    """When the tokens are there; None where they are already."""
    error: Exception | None


class _Loaded(NamedTuple):
    """What takes memory, so that `close` can give it back at once."""

    model: Transformer
    caches: list[LayerCache]
    last_tokens: Tensor  # [max_num_seqs] int64: what each slot sampled last
    graphs: DecodeGraphs | None
    """On a GPU: decodes alone are replayed rather than launched kernel by kernel."""

    def forward(self, step: StepTensors) -> Tensor:
        """The logits [sampled, vocab], to be read before the next forward pass."""
        if self.graphs is not None and self.graphs.fits(step):
            return self.graphs.run(step)
        return self.model.forward(step, self.caches)


class TorchBackend:
    """Implements `StepBackend`. One thread owns it."""

    def __init__(
        self,
        config: ModelConfig,
        load_weights: Callable[[], dict[str, Tensor]],
        *,
        ops: Ops,
        device: torch.device | str = "cpu",
    ) -> None:
        """`load_weights` gives the weights by Hugging Face's names, in the dtype that the model is to run in; called once, by
        `load`. `ops` are for the same device."""
        self.device = torch.device(device)
        self.max_inflight_steps = 2 if self.device.type == "cuda" else 1
        self._config = config
        self._load_weights = load_weights
        self._ops = ops
        self._loaded: _Loaded | None = None
        self._launched: deque[_Launched] = deque()  # The oldest first.

    def load(self, layout: KvLayout) -> None:
        with torch.inference_mode():
            weights = self._load_weights()
            for name in weights:
                weights[name] = weights[name].to(self.device)
            model = Transformer(self._config, weights, self._ops, layout.max_model_len)
            last_tokens = torch.zeros(layout.max_num_seqs, dtype=torch.int64, device=self.device)
            self._loaded = self._allocate(model, layout, last_tokens)
        for step in _warmup_steps(layout):
            self.launch(step)
            self.collect()

    def _allocate(self, model: Transformer, layout: KvLayout, last_tokens: Tensor) -> _Loaded:
        if self.device.type != "cuda":
            return _Loaded(model, model.allocate_caches(layout.num_blocks), last_tokens, None)
        caches = model.allocate_caches(layout.num_blocks + 1)  # The last block is scratch: graphs pad with it.
        graphs = DecodeGraphs(
            lambda step: model.forward(step, caches),
            max_num_seqs=layout.max_num_seqs,
            max_model_len=layout.max_model_len,
            scratch_block=layout.num_blocks,
            device=self.device,
        )
        return _Loaded(model, caches, last_tokens, graphs)

    def launch(self, step: Step) -> None:
        assert self._loaded is not None, "launch before load, or after close"
        assert len(self._launched) < self.max_inflight_steps, "collect the oldest step first"
        try:
            with torch.inference_mode():
                launched = self._start(self._loaded, build_inputs(step, self.device))
        except Exception as error:
            launched = _Launched(None, None, error)
        self._launched.append(launched)

    def collect(self) -> list[int]:
        launched = self._launched.popleft()
        if launched.error is not None:
            raise launched.error
        if launched.is_done is not None:
            launched.is_done.synchronize()
        assert launched.tokens is not None
        tokens: list[int] = launched.tokens.tolist()
        return tokens

    def close(self) -> None:
        self._loaded = None
        self._launched.clear()

    def _start(self, loaded: _Loaded, inputs: StepInputs) -> _Launched:
        """Computes the step where the host computes, and queues it where a device does."""
        tensors = inputs.tensors
        if inputs.has_pending:
            decodes = tensors.tokens[: tensors.num_decodes]
            decodes.copy_(torch.where(decodes == PENDING, loaded.last_tokens[inputs.decode_slots], decodes))
        logits = loaded.forward(tensors)
        if inputs.samplings:
            tokens = sample(logits, inputs.samplings, inputs.sampled_positions)
            loaded.last_tokens[inputs.sampled_slots] = tokens
        else:
            tokens = torch.empty(0, dtype=torch.int64, device=self.device)
        if self.device.type != "cuda":
            return _Launched(tokens, None, None)
        on_host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=True)
        on_host.copy_(tokens, non_blocking=True)
        return _Launched(on_host, torch.cuda.current_stream(self.device).record_event(), None)

    def __repr__(self) -> str:
        return (
            f"<TorchBackend {self.device} {'loaded' if self._loaded else 'not loaded'}, {len(self._launched)} steps inflight>"
        )


def _warmup_steps(layout: KvLayout) -> list[Step]:
    """A chunk and then a decode, in block 0: whoever is given that block later writes over it."""

    def step(tokens: list[int], start: int, sampling: Sampling) -> Step:
        sequence = ScheduledSequence(0, 0, tokens, start, array("i", [0]), True, sampling)
        return Step(0, (sequence,), len(tokens))

    num_tokens = min(_WARMUP_TOKENS, layout.max_step_tokens, layout.max_model_len)
    return [step([0] * num_tokens, 0, GREEDY), step([0], num_tokens - 1, GREEDY)]
