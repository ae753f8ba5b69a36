from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import AddedToken
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from backends.llm.gguf_file import GgufFile
from backends.llm.tokenizer import ModelTokenizer, load_tokenizer
from backends.llm.weights import find_model
from batcher.errors import ConfigError
from tests.backends.llm.tiny import Tiny, make_tiny
from tests.backends.llm.vocab import in_transformers, splitter, train


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more threads, and sums stay in one order."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


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


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_llama: Tiny) -> ModelTokenizer:
    return load_tokenizer(tiny_llama.path)


@pytest.fixture(scope="session")
def tiny_reference(tiny_llama: Tiny) -> PreTrainedTokenizerFast:
    reference = AutoTokenizer.from_pretrained(tiny_llama.path)
    assert isinstance(reference, PreTrainedTokenizerFast)
    return reference


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> PreTrainedTokenizerFast:
    """Not AutoTokenizer: from this file it leaves out the splitting of digits."""
    metadata = GgufFile(smollm2_path).metadata
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(BPE(vocab={text: token for token, text in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = splitter()
    specials = [text for text, token_type in zip(tokens, types, strict=True) if token_type == 3]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    return in_transformers(tokenizer, metadata["tokenizer.chat_template"])
