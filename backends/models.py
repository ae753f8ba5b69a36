"""Which models there are, by name: `simulated`, `smollm2`, a folder, or a GGUF file.

As in `backends.create`, each is imported when it is asked for: only a real model needs torch.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.base import Model, ModelInfo, StepBackend, Tokenizer
from backends.bytes_model import VOCAB_SIZE, BytesTokenizer
from backends.simulated_steps import SimulatedStepBackend, SimulatedSteps
from batcher.errors import ConfigError

SIMULATED = "simulated"
SMOLLM2 = "smollm2"

_SIMULATED_CONTEXT_LEN = 131_072


class SimulatedModel:
    """A Model that echoes (`backends.simulated_steps`), without torch."""

    def __init__(self, settings: SimulatedSteps) -> None:
        self._settings = settings
        self.tokenizer: Tokenizer = BytesTokenizer()
        self.info = ModelInfo(
            id=SIMULATED,
            version=SIMULATED,
            context_len=_SIMULATED_CONTEXT_LEN,
            vocab_size=VOCAB_SIZE,
            kv_bytes_per_token=settings.kv_bytes_per_token,
            kv_bytes=int(settings.kv_bytes),
        )

    def make_backend(self) -> StepBackend:
        return SimulatedStepBackend(self._settings)


def create_model(
    name: str, *, dtype: str = "bfloat16", device: str = "auto", settings: Mapping[str, object] | None = None
) -> Model:
    """The model of that name; reads its tokenizer and its numbers, no weights yet.

    `settings` are for `simulated` only. The id that callers use is the name itself, or for a path its last part without suffix.
    Raises ConfigError for whatever can be known to be wrong before the weights are read.
    """
    if name == SIMULATED:
        try:
            return SimulatedModel(msgspec.convert(dict(settings or {}), SimulatedSteps))
        except msgspec.ValidationError as error:
            raise ConfigError(f"settings of model 'simulated': {error}") from error
    if settings:
        raise ConfigError(f"model {name!r} takes no settings here, only 'simulated' does: {', '.join(settings)}")
    if name != SMOLLM2 and not Path(name).exists():
        raise ConfigError(f"model must be {SIMULATED!r}, {SMOLLM2!r}, a folder or a .gguf file, and {name!r} is none of them")
    try:
        from backends.llm.loading import LlmModel
    except ModuleNotFoundError as error:
        raise ConfigError(f"model {name!r} needs the llm extra (pip install 'batcher[llm]'): {error}") from error
    return LlmModel(name, dtype=dtype, device=device)
