"""transformers on the same weights, as a fair user would run it: `generate` on one batch, and its continuous batching.

Both get token ids, are greedy and never stop before the length that was asked for. `generate` knows no stop token at all, so
that it does not pay for masking one.
"""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

from backends.llm.config import ModelConfig
from benchmarks.recorder import CLOCK
from benchmarks.reference import as_transformers
from benchmarks.runs import Run

_PAD_ID = 0
_NO_STOP_ID = -1
_PAGE_SIZE = 256
"""transformers' default: tokens of one of its KV pages."""
_ANSWER_TIMEOUT_S = 600.0
"""A run that takes longer is broken; its manager may have died without a word."""


def peer_model(config: ModelConfig, weights: dict[str, Tensor]) -> LlamaForCausalLM:
    """As `as_transformers`, set to be measured: no stop tokens, no chatter."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    model = as_transformers(config, weights)
    model.config.eos_token_id = None
    model.generation_config = _greedy(None)
    return model


def _greedy(stop_id: int | None) -> GenerationConfig:
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False, pad_token_id=_PAD_ID, eos_token_id=stop_id
    )


def attention_of(model: Any) -> str:
    return f"{model.config._attn_implementation} attention"


class Generate:
    """A Contender: `model.generate` in one static batch; all prompts of a run have one length."""

    name = "generate"

    def __init__(self, model: Any) -> None:
        self._model = model

    def run(self, prompts: list[list[int]], num_output: int) -> Run:
        device = self._model.device
        started_at = CLOCK()
        watch = _Watch()
        ids = torch.tensor(prompts, device=device)
        with torch.inference_mode():
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_output,
                stopping_criteria=StoppingCriteriaList([watch]),
            )
        assert output.shape == (len(prompts), len(prompts[0]) + num_output), output.shape
        return Run(started_at, [watch.times] * len(prompts))

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return f"generate: one static batch, {attention_of(self._model)}, {self._model.dtype}, no compilation"


class _Watch(StoppingCriteria):
    """Stops nothing and notes when each column of tokens was there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        if input_ids.device.type == "cuda":
            torch.cuda.synchronize(input_ids.device)  # `generate` does so itself, right after this.
        self.times.append(CLOCK())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Continuous:
    """A Contender: transformers' continuous batching. Its manager stays open from birth to `close`, in a thread that sleeps
    between runs. It has pages for all sequences at once and may compute as many tokens in a step as our engine."""

    name = "continuous"

    def __init__(self, model: Any, *, at_a_time: int, prompt_len: int, num_output: int, max_step_tokens: int) -> None:
        num_pages = at_a_time * (-(-(prompt_len + num_output) // _PAGE_SIZE) + 1)
        self._settings = ContinuousBatchingConfig(
            page_size=_PAGE_SIZE,
            num_blocks=num_pages,
            max_batch_tokens=max_step_tokens,
            max_requests_per_batch=at_a_time,
        )
        self._model = model
        self._context = model.continuous_batching_context_manager(
            generation_config=_greedy(_NO_STOP_ID),
            continuous_batching_config=self._settings,
            workload_hints=WorkloadHints(prompt_len, num_output, at_a_time),
            warmup=model.device.type == "cuda",
        )
        with torch.inference_mode():  # Its thread takes over the mode of the one that starts it.
            self._manager = self._context.__enter__()

    def run(self, prompts: list[list[int]], num_output: int) -> Run:
        manager = self._manager
        started_at = CLOCK()
        ids = [manager.add_request(prompt, max_new_tokens=num_output, record_timestamps=True) for prompt in prompts]
        times: dict[str, list[float]] = {}
        while len(times) < len(prompts):
            result = manager.get_result(timeout=1.0)
            if result is None:
                if not manager.is_running() or CLOCK() - started_at > _ANSWER_TIMEOUT_S:
                    raise RuntimeError(f"continuous batching ended after {len(times)} of {len(prompts)} answers")
                continue
            if result.error is not None:
                raise RuntimeError(f"continuous batching failed: {result.error}")
            if result.is_finished():
                assert len(result.timestamps) == num_output, (len(result.timestamps), num_output)
                times[result.request_id] = result.timestamps
        return Run(started_at, [times[each] for each in ids])

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def __str__(self) -> str:
        settings = self._settings
        return (
            f"continuous: {attention_of(self._model)}, {self._model.dtype}, {settings.num_blocks} pages of "
            f"{settings.page_size} tokens, at most {settings.max_batch_tokens} tokens and {settings.max_requests_per_batch} "
            f"requests a step, no compilation"
        )
