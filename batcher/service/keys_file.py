"""Which keys a service has, and the keys file read again when it changes, without a restart.

The file is asked for its times, size and number twice a second: a `stat` costs the event loop microseconds. A watch by the
system (inotify) was refused, since it sees nothing of a folder that is mounted from elsewhere. Reading, which may be long, is
for a thread that keeps no process from ending. A file that cannot be understood changes nothing: whoever has a key keeps it
until the file is mended. It is tried again meanwhile: what stood in the way of a revocation may have been a passing thing.
"""

import asyncio
import os
from pathlib import Path
from typing import TypeAlias

import msgspec

from batcher.config import KeyConfig, TierConfig
from batcher.errors import ConfigError
from batcher.keys.file import create_command, read_keys
from batcher.service import log
from batcher.service.auth import DevelopmentKeys, Keyring, Keys
from batcher.service.threads import Threads

CHECK_INTERVAL_S = 0.5
"""A revoked key stops working within about a second, with the reading."""

RETRY_S = 5.0
"""Between two readings of a file that was refused and has not changed."""

_Mark: TypeAlias = tuple[int, int, int, int]


class KeysStatistics(msgspec.Struct, frozen=True):
    num_keys: int
    """That open something; without the development keys, which are without number."""
    num_reloads: int
    num_refused_reloads: int
    """Of a file that could not be read or understood, for each reason once."""
    is_refused: bool
    """Whether that is so now: the keys in force are not those of the file."""


class KeySource:
    """The keys of one service: configured, from a file, or both; without either, the development keys.

    `keys` is one object for good, of which the contents change. From `start` to `close` it belongs to the running event loop;
    of `_timer` and `_reading` at most one is pending.
    """

    keys: Keys

    def __init__(self, *, configured: tuple[KeyConfig, ...], file: Path | None, tiers: tuple[TierConfig, ...]) -> None:
        """Raises ConfigError, also for a file that is missing or without a key."""
        self._configured = configured
        self._file = file
        self._tiers = tiers
        self._keyring = Keyring((), tiers)
        self._mark: _Mark | None = None
        self._refusal: tuple[_Mark | None, str] | None = None
        """What was refused and why, until the file is read again."""
        self._retry_at = 0.0
        """On the loop's clock; of a refused file."""
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[Keyring] | None = None
        self._threads = Threads("keys-file")
        self._is_closed = False
        self._num_reloads = 0
        self._num_refused_reloads = 0
        if file is None and not configured:
            self.keys = DevelopmentKeys(tiers)
            return
        self.keys = self._keyring
        if file is not None:
            self._mark = _mark_of(file)
        self._keyring.become(Keyring(self._all_keys(), tiers))
        if not self._keyring:
            assert file is not None
            raise ConfigError(f"there is no key in the keys file {file}; {create_command(file)} makes one")

    def start(self) -> None:
        if self._file is not None:
            self._arm(self._file)

    def close(self) -> None:
        self._is_closed = True
        for pending in (self._timer, self._reading):
            if pending is not None:
                pending.cancel()
        self._threads.close()

    def statistics(self) -> KeysStatistics:
        return KeysStatistics(
            len(self._keyring), self._num_reloads, self._num_refused_reloads, is_refused=self._refusal is not None
        )

    def _all_keys(self) -> tuple[KeyConfig, ...]:
        return self._configured if self._file is None else (*self._configured, *read_keys(self._file))

    def _arm(self, file: Path) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self._check, file)

    def _check(self, file: Path) -> None:
        # Before the reading: what changes meanwhile is another change.
        mark, loop = _mark_of(file), asyncio.get_running_loop()
        is_retried = self._refusal is not None and loop.time() >= self._retry_at
        if mark == self._mark and not is_retried:
            self._arm(file)
            return
        self._mark = mark
        self._reading = loop.create_task(self._threads.call(self._read, file))
        self._reading.add_done_callback(lambda reading: self._on_read(file, reading))

    def _read(self, file: Path) -> Keyring:
        """In a thread. A key of a tier that this server does not have opens nothing, and one that is configured is no other in
        the file: neither holds up another key's revocation."""
        known = {tier.name for tier in self._tiers}
        names = {name for key in self._configured for name in (key.key_id, key.sha256)}
        keys = list(self._configured)
        for key in read_keys(file):
            if key.tier not in known:
                log.error("key_left_out", key_id=key.key_id, tier=key.tier, tiers=sorted(known))
            elif not names.isdisjoint((key.key_id, key.sha256)):
                log.error("key_left_out", key_id=key.key_id, reason="it is configured by the settings, too")
            else:
                keys.append(key)
        return Keyring(keys, self._tiers)

    def _on_read(self, file: Path, reading: "asyncio.Future[Keyring]") -> None:
        error = None if reading.cancelled() else reading.exception()
        if self._is_closed:
            return
        self._reading = None
        self._arm(file)
        if error is not None:
            self._refuse(error)
            return
        self._refusal = None
        self._num_reloads += 1
        self._keyring.become(reading.result())
        log.event("keys_reloaded", num_keys=len(self._keyring))

    def _refuse(self, error: BaseException) -> None:
        self._retry_at = asyncio.get_running_loop().time() + RETRY_S
        refusal = (self._mark, str(error))
        if refusal == self._refusal:
            return
        self._refusal = refusal
        self._num_refused_reloads += 1
        if isinstance(error, ConfigError):
            log.error("keys_file_refused", reason=str(error), num_keys=len(self._keyring))
        else:
            log.error("keys_file_refused", exc_info=error, num_keys=len(self._keyring))


def _mark_of(file: Path) -> _Mark | None:
    """What is different after a change; None while there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
