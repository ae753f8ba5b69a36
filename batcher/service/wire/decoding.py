"""What the grammars of bodies have in common: how a body is read, what is said of one that is wrong, and fields that mean the
same everywhere.

What a grammar publishes and this service does not do is written into the body's type, as the only values that ask for nothing
(`tools` may be an empty list): the decoder refuses the rest while it reads, and no code has to look for it afterwards.
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, NoReturn, Protocol, TypeVar

import msgspec
from msgspec import Meta

from batcher.errors import InvalidRequest

T = TypeVar("T")

_MAX_CHARS = 200
"""The decoder's words may quote a field's name, which may be as long as a body."""

MAX_SEED = 2**63 - 1

MAX_INTEGER = 2**53
"""The largest whole number that every JSON reader agrees on; what the model's context allows is far less."""

MAX_STOP_SEQUENCES = 16
"""Each is looked for at every character of the answer."""

MaxTokens = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
PublishedTopP = Annotated[float, Meta(ge=0.0, le=1.0)]
"""Of the vendors' grammars: 0 is the likeliest token alone, see `narrowed`."""
TopK = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]
"""As much text may be held back from a stream while it could still become the stop sequence."""
NoItems = Annotated[list[None], Meta(max_length=0)]

_PATH = re.compile(r" - at `\$\.(\w+)[^`]*`\Z")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`\Z")
_FIELD = re.compile(r"\AObject (?:missing required|contains unknown) field `([^`]*)`")


class NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """An object that asks for nothing."""


class HasText(Protocol):
    @property
    def text(self) -> str: ...


def explain(error: msgspec.DecodeError) -> str:
    """What a JSON decoder says about a body, in words for whoever sent it."""
    text = str(error)
    if text == "Input data was truncated":  # The decoder's words for a lone surrogate escape, too.
        return "it ends early, or a \\u escape is half a character"
    # What is wrong may be long; where it is stands behind it.
    what, at, where = text.rpartition(" - at `")
    return what[:_MAX_CHARS] + at + where[:_MAX_CHARS]


def wrong_document(error: msgspec.DecodeError, body: bytes | bytearray, *, example: str) -> InvalidRequest:
    """Of a body that is no document like the example."""
    if not body:
        return InvalidRequest(f"the body is empty: it must be a JSON object like {example}")
    return InvalidRequest(f"the body must be a JSON object like {example}: {explain(error)}")


def decode_body(
    decoder: msgspec.json.Decoder[T], body: bytes | bytearray, *, example: str, hint: Callable[[str], str | None]
) -> T:
    """Raises InvalidRequest for whatever is not exactly such a body; `hint` may have better words than the decoder's.

    Text that has no UTF-8 form (lone surrogates, overlong bytes) is refused here, before it can meet a tokenizer.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = explain(error)
        raise InvalidRequest(f"invalid body: {hint(text) or text}", param=_find_param(text)) from None
    except msgspec.DecodeError as error:
        raise wrong_document(error, body, example=example) from None
    except RecursionError:
        raise InvalidRequest(f"the body is nested too deeply: it must be a JSON object like {example}") from None


def _find_param(text: str) -> str | None:
    """The field that a decoder's words are about."""
    place, field = _PLACE.search(text), _FIELD.match(text)
    return ".".join(found[1] for found in (place, field) if found is not None and found[1]) or None


def find_unsupported(text: str, names: Collection[str], only: Mapping[str, str]) -> str | None:
    """Words for a field that the grammar publishes and this service does not do, if the decoder's words are about one. `only`
    has the values that may be sent nevertheless, of the fields whose absence says less."""
    path = _PATH.search(text)
    if path is None or (name := path[1]) not in names:
        return None
    return f"{name}: only {only[name]} is supported" if name in only else f"{name} is not supported"


def join_text(content: str | Iterable[HasText]) -> str:
    """A turn's text: its parts, with nothing between them."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def refuse_empty(where: str) -> NoReturn:
    """A turn without text, where there must be some. Raises InvalidRequest."""
    raise InvalidRequest(f"invalid body: the content of {where} is empty", param=f"{where}.content")


def narrowed(*, top_p: float | None, top_k: int | None) -> tuple[float, int]:
    """(top_p, top_k) as they are ours, from what the vendors publish: None asks for nothing, and a top_p of 0, which holds no
    probability at all, for the likeliest token."""
    if top_p == 0.0:
        return 1.0, 1
    return 1.0 if top_p is None else top_p, 0 if top_k is None else top_k


def draw_seed() -> int:
    """For a caller who gave none: only then is the answer another one each time."""
    return random.getrandbits(63)
