"""A vocabulary as a Hugging Face folder has it: tokenizer.json, and a chat template beside it.

transformers' AutoTokenizer was refused: for some families it builds the tokenizer anew by its own idea of them, and what
tokenizer.json says is what the model was trained with.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from backends.llm.vocabulary import Namer, Vocabulary, make_pieces
from batcher.errors import ConfigError

_ROLE_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Raises ConfigError for what is not there, not whole or not supported."""
    spec = _read_json(folder / "tokenizer.json")
    settings = _read_json(folder / "tokenizer_config.json", is_needed=False)
    try:
        names, ids = _rename(spec)
        tokenizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(spec).decode())
        whole = {token["id"]: token["content"] for token in spec["added_tokens"] if not token["special"]}
        is_byte_level = _is_byte_level(spec, folder)
        pieces = make_pieces(tokenizer, specials=set(ids.values()), whole=whole, is_byte_level=is_byte_level)
    except ConfigError:
        raise
    except Exception as error:  # The library raises bare Exception for what it cannot build.
        raise ConfigError(f"{folder / 'tokenizer.json'} cannot be used: {error}") from error
    for token, name in names.items():
        if tokenizer.token_to_id(name) != ids[token]:
            raise ConfigError(
                f"{folder / 'tokenizer.json'}: special token {token!r} does not have the id {ids[token]} it declares"
            )
    named = settings | _read_json(folder / "special_tokens_map.json", is_needed=False)
    template_tokens = {role: text for role in _ROLE_NAMES if (text := _token_text(named.get(role))) is not None}
    eos_ids = _declared_eos(folder)
    if (eos := template_tokens.get("eos_token")) is not None and (eos_id := ids.get(eos)) is not None:
        eos_ids |= {eos_id}
    return Vocabulary(tokenizer, names, ids, pieces, frozenset(eos_ids), _folder_template(folder, settings), template_tokens)


def _read_json(path: Path, *, is_needed: bool = True) -> dict[str, Any]:
    if not is_needed and not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _rename(spec: dict[str, Any]) -> tuple[dict[str, str], dict[str, int]]:
    """Gives the special tokens of a tokenizer.json their secret names, in place, and removes what would add tokens or cut."""
    namer = Namer()
    specials = [token for token in spec["added_tokens"] if token["special"]]
    ids = {token["content"]: token["id"] for token in specials}
    names = {token: namer.name(token_id) for token, token_id in ids.items()}
    for token in specials:
        token["content"] = names[token["content"]]
    model = spec["model"]
    if model["type"] != "BPE":
        raise ConfigError(f"model {model['type']!r} in tokenizer.json is not supported; only BPE is")
    model["vocab"] = {names.get(token, token): token_id for token, token_id in model["vocab"].items()}
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    spec |= {"post_processor": None, "truncation": None, "padding": None}
    return names, ids


def _is_byte_level(spec: Mapping[str, Any], folder: Path) -> bool:
    """Whether the vocabulary is of bytes written as characters, or else of pieces with a mark for each space."""
    decoder = spec.get("decoder") or {}
    kinds = {part["type"] for part in (decoder, *decoder.get("decoders", ()))}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    raise ConfigError(
        f"{folder / 'tokenizer.json'}: decoder {decoder.get('type')!r} is neither ByteLevel nor of pieces with spaces"
    )


def _token_text(value: object) -> str | None:
    """Older files wrap a token in a table of how it is matched."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _declared_eos(folder: Path) -> set[int]:
    declared: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = _read_json(folder / name, is_needed=False).get("eos_token_id")
        declared |= {token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int)}
    return declared


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # Several, by name.
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None
