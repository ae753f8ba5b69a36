from pathlib import Path

import pytest
import torch

from backends.llm.tokenizer import ModelTokenizer, load_tokenizer
from backends.llm.weights import find_model
from batcher.errors import ConfigError
from tests.backends.llm.tiny import Tiny, make_tiny
from tests.backends.llm.vocab import in_transformers, train


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny models gain nothing from more threads, and sums stay in one order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    try:
        return find_model("smollm2")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path: Path) -> ModelTokenizer:
    return load_tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A whole folder: weights, tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    in_transformers(train()).save_pretrained(folder)
    return make_tiny("llama", folder)
