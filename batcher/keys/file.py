"""The keys file: what `batcher keys` writes and a server reads, again whenever it changes.

A file and no database: keys change by hand a few times a day, a file can be mounted, copied and compared, and a server that has
read it needs nobody to answer a request. It is replaced whole and atomically, so that a reader never sees half of it, and under
a lock, so that two commands at once lose nothing. What cannot be understood is never overwritten.
"""

import fcntl
import json
import os
import stat
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from stat import S_IMODE
from typing import TypeAlias

import msgspec

from batcher.config import KeyConfig, check_keys
from batcher.config.wording import in_words
from batcher.errors import ConfigError
from batcher.regular_file import open_regular

MAX_FILE_BYTES = 64 * 2**20
"""Far more than any keys file has, and what somebody may point at one by mistake is not read to its end."""

LOCK_WAIT_S = 10.0
"""For another command to finish; each takes milliseconds."""

_LOCK_POLL_S = 0.02

_HEADER = "# Written by `batcher keys`, which keeps no comments. Keys are known by their digests alone."


class StoredKey(KeyConfig, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A key of the file."""

    created_at: datetime | None = None
    rotated_at: datetime | None = None
    """When it last got a new secret."""


Keys: TypeAlias = tuple[StoredKey, ...]


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """`keys` must be there, be it empty: a file that was cut off to nothing has not revoked them all."""

    keys: Keys


class MissingKeysFile(ConfigError):
    """There is none at this path."""


def create_command(file: Path) -> str:
    return f"`batcher keys create --file {file} --tenant NAME --tier TIER`"


def read_keys(file: Path) -> Keys:
    """All keys of the file. Raises ConfigError, which never repeats a secret that stands in a wrong place."""
    try:
        with open_regular(file) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise MissingKeysFile(f"there is no keys file {file}; {create_command(file)} makes one") from None
    except OSError as error:
        raise ConfigError(f"cannot read the keys file {file}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the keys file {file} is larger than {MAX_FILE_BYTES} bytes")
    try:
        document = msgspec.json.decode(data) if _is_json(file) else tomllib.loads(data.decode())
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys file {file}: {error}") from None
    try:
        keys = msgspec.convert(document, _Document).keys
        check_keys(keys)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot read the keys file {file}: {in_words(error, _Document, document)}") from None
    except ConfigError as error:
        raise ConfigError(f"cannot read the keys file {file}: {error}") from None
    return keys


def change_keys(file: Path, change: Callable[[Keys], Keys], *, creates: bool = False) -> None:
    """Replaces the file's keys by what `change` makes of them, alone. With `creates` a missing file counts as an empty one.

    Raises ConfigError, also by `change`, and then the file is as it was.
    """
    # Through a link to the file itself: else the link would be replaced.
    file = Path(os.path.realpath(file))
    try:
        with _locked(file):
            try:
                before = read_keys(file)
            except MissingKeysFile:
                if not creates:
                    raise
                before = ()
            after = change(before)
            check_keys(after)
            _replace(file, _encode(after, is_json=_is_json(file)))
    except OSError as error:
        raise ConfigError(f"cannot write the keys file {file}: {error.strerror}") from None


def _is_json(file: Path) -> bool:
    return file.suffix == ".json"


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Held on a file beside it, which stays: the keys file itself is another file after each change. Raises ConfigError."""
    try:
        lock = _open_lock(file)
    except OSError as error:
        raise ConfigError(f"cannot write the keys file {file}: cannot open its lock {file}.lock: {error.strerror}") from None
    try:
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while not _take(lock):
            if time.monotonic() > give_up_at:
                raise ConfigError(f"another command has held {file}.lock for {LOCK_WAIT_S:g} s")
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(lock)


def _open_lock(file: Path) -> int:
    """Whoever may change the file may take its lock, also where root made it: it gets the file's owner, group and mode, or its
    folder's owner and group while there is no file. Raises OSError.

    Only a new one is given away: one that lies there may be a link, put there by somebody who wants what it leads to.
    """
    like = (file if file.exists() else file.parent).stat()
    try:
        lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return os.open(f"{file}.lock", os.O_RDWR | os.O_CLOEXEC)
    if stat.S_ISREG(like.st_mode):
        os.fchmod(lock, 0o600 | like.st_mode & 0o066)
    for user, group in ((-1, like.st_gid), (like.st_uid, -1)):
        # Root alone may give to others, and each to groups of their own. It locks all the same.
        with suppress(OSError):
            os.fchown(lock, user, group)
    return lock


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(file: Path, data: bytes) -> None:
    """The whole file at once, on the disk before this returns; a new one is readable by its owner alone."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")  # With mode 0600.
    try:
        with open(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            if file.exists():
                # Changed by root, it must stay readable for the user that serves, who may be one of the group.
                before = file.stat()
                os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, S_IMODE(before.st_mode))
            os.fsync(handle)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _encode(keys: Keys, *, is_json: bool) -> bytes:
    if is_json:
        return msgspec.json.format(msgspec.json.encode(_Document(keys)), indent=2) + b"\n"
    lines = [_HEADER]
    for key in keys:
        fields: dict[str, object] = msgspec.to_builtins(key, builtin_types=(datetime,))
        lines += ["", "[[keys]]", *(f"{name} = {_to_toml(value)}" for name, value in fields.items())]
    return "\n".join([*lines, *([] if keys else ["keys = []"]), ""]).encode()


def _to_toml(value: object) -> str:
    """Numbers, switches and strings are written as in JSON; an instant is TOML's own."""
    return value.isoformat() if isinstance(value, datetime) else json.dumps(value)
