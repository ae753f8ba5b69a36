"""How a question looks on the wire, and whether an answer belongs to it.

A target is a template, so any HTTP endpoint that takes a JSON (or other text) body can be tested, and ours is one preset
among them. Everything that is the same for all requests of a key is rendered once; a request then costs one replacement
in bytes. Inputs are plain ASCII without quotes, so they need no escaping in any body.
"""

from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from batcher.errors import ConfigError
from batcher.sim.workload import Sender, stream
from loadtest.samples import Ending

MIN_INPUT_SIZE = 20
"""Characters that make an input unique in its run, and runs of different seeds different."""

_WORDS = "a batch leaves when fifty wait or when the oldest has waited long enough to any free worker and paid goes first"


class Check(StrEnum):
    """What an answer must have in common with its question."""

    ECHO = "echo"
    CONTAINS = "contains"
    NONE = "none"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint. `{input}` in the body, and `{key}` in headers, stand for the request's own."""

    url: str
    """With the path, where requests go."""
    body: str = '{"input":"{input}"}'
    headers: tuple[tuple[str, str], ...] = ()
    check: Check = Check.ECHO
    output_field: str = "output"
    """Where the answer is in the JSON that comes back: names and indices, joined by dots."""
    id_field: str = "id"
    """Where the answer's id is; one id seen twice is an answer given twice. Empty: answers have none."""
    is_insecure: bool = False
    """Accept any certificate."""

    def __post_init__(self) -> None:
        parts = split_url(self.url)
        if parts.username is not None:
            raise ConfigError("put credentials into a header, not into the URL: the URL is written into the report")
        if "{input}" not in self.body and self.check is not Check.NONE:
            raise ConfigError("the body has no {input}, so no answer can be checked against it: use --check none")
        for name, value in self.headers:
            if not name or any(letter in name + value for letter in "\r\n"):
                raise ConfigError(f"{name!r} is no usable header")

    @property
    def sends_keys(self) -> bool:
        """Whether a request's head depends on who sends it."""
        return any("{key}" in value for value in self.last_headers.values())

    @property
    def last_headers(self) -> dict[str, str]:
        """By their names in lower case; of two with one name the last counts."""
        return {name.lower(): value for name, value in self.headers}


def split_url(url: str) -> "SplitUrl":
    """The parts of an http or https URL. Raises `ConfigError`."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the URL must start with http://HOST or https://HOST, not {url!r}")
    is_tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    return SplitUrl(parts.hostname, port or (443 if is_tls else 80), is_tls, host, path, parts.username)


class SplitUrl(msgspec.Struct, frozen=True):
    hostname: str
    port: int
    is_tls: bool
    host: str
    """As the Host header wants it."""
    path: str
    username: str | None


def run_target(url: str, *, path: str = "/v1/run", check: Check = Check.ECHO) -> Target:
    """The preset of batch mode's plain contract: `{"input"}` in, `{"id", "output", "usage"}` out, keys in x-api-key."""
    return Target(url=url.rstrip("/") + path, headers=(("x-api-key", "{key}"),), check=check)


class Questions:
    """Makes the inputs of one run: each unique, of one size, the same for the same seed."""

    def __init__(self, *, size: int, seed: int, poison_prefix: str) -> None:
        rng = stream(seed, "questions")
        words = _WORDS.split()
        self._size = size
        self._salt = f"{rng.getrandbits(32):08x}"
        self._poison_prefix = poison_prefix
        self._filler = " ".join(rng.choice(words) for _ in range((size + 4096) // 2))

    def text(self, index: int, is_poison: bool) -> str:
        head = f"{self._poison_prefix if is_poison else ''}{self._salt}-{index:07x} "
        start = index * 37 & 4095
        return head + self._filler[start : start + self._size - len(head)]


class Wire:
    """Renders a target's requests and judges its answers. Stateless after birth."""

    def __init__(self, target: Target, senders: tuple[Sender, ...], input_size: int) -> None:
        self.address = split_url(target.url)
        self._body = target.body.encode()
        length = len(self._body) + self._body.count(b"{input}") * (input_size - len(b"{input}"))
        ending = b"content-length: %d\r\n\r\n" % length
        self._heads = [render_head(target, sender.key, self.address) + ending for sender in senders]
        self._check = target.check
        self._output_path = _split_field(target.output_field)
        self._id_path = _split_field(target.id_field)

    def request(self, sender: int, text: str) -> bytes:
        return self._heads[sender] + self._body.replace(b"{input}", text.encode())

    def judge(self, status: int, body: bytes, question: str, is_poison: bool) -> tuple[Ending, object]:
        """How a request ended that got this answer, and the answer's id (None where it has none, or is no success)."""
        if not 200 <= status < 300:
            return (Ending.POISON_FAILED if is_poison and status == 500 else judge_status(status)), None
        if self._check is Check.NONE:
            return (Ending.POISON_ANSWERED if is_poison else Ending.OK), None
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Ending.MISMATCHED, None
        output = _look_up(answer, self._output_path)
        is_right = output == question or (self._check is Check.CONTAINS and isinstance(output, str) and question in output)
        answer_id = _look_up(answer, self._id_path) if self._id_path else None
        if is_poison:
            return Ending.POISON_ANSWERED, answer_id
        return (Ending.OK if is_right else Ending.MISMATCHED), answer_id


def render_head(target: Target, key: str, address: SplitUrl) -> bytes:
    """The head of every request with this key, but for the length of its body. Raises `ConfigError`."""
    headers = {"host": address.host, "content-type": "application/json", "user-agent": "batcher-loadtest"}
    headers |= {name: value.replace("{key}", key) for name, value in target.last_headers.items()}
    headers.pop("content-length", None)
    lines = [f"POST {address.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    try:
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the path and headers must be Latin-1: {error}") from error


def judge_status(status: int) -> Ending:
    if status == 429:
        return Ending.REJECTED_RATE
    if status in (503, 529):
        return Ending.REJECTED_CAPACITY
    if status == 504:
        return Ending.EXPIRED
    return Ending.FAILED if status >= 500 else Ending.CLIENT_ERROR


def _split_field(field: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in field.split(".")) if field else ()


def _look_up(answer: object, path: tuple[str | int, ...]) -> object:
    """What `path` leads to, or None."""
    for part in path:
        if isinstance(answer, dict):
            answer = answer.get(str(part))
        elif isinstance(answer, list) and isinstance(part, int) and part < len(answer):
            answer = answer[part]
        else:
            return None
    return answer
