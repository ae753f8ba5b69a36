"""The keys file: replaced whole, by one at a time, and never when it could not be understood."""

import json
import os
import stat
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batcher.errors import ConfigError
from batcher.keys import file as keys_file
from batcher.keys.file import Keys, MissingKeysFile, StoredKey, change_keys, read_keys

AT = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
ADA = StoredKey(tenant="ada", tier="paid", sha256="a" * 64, created_at=AT)
BOB = StoredKey(
    tenant="bob.inc", tier="free", sha256="b" * 64, id="key_bob", is_operator=True, requests_per_minute=60,
    tokens_per_minute=10**12, created_at=AT, rotated_at=AT,
)  # fmt: skip


@pytest.fixture(params=["keys.toml", "keys.json"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def put(*keys: StoredKey) -> Callable[[Keys], Keys]:
    return lambda before: keys


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read(file: Path) -> None:
    change_keys(file, put(ADA, BOB), creates=True)
    assert read_keys(file) == (ADA, BOB)
    change_keys(file, lambda before: (*before[1:], before[0]))
    assert read_keys(file) == (BOB, ADA)
    change_keys(file, put())
    assert read_keys(file) == ()


def test_it_is_what_its_ending_says(tmp_path: Path) -> None:
    change_keys(tmp_path / "keys.toml", put(ADA), creates=True)
    change_keys(tmp_path / "keys.json", put(ADA), creates=True)
    expected = {"tenant": "ada", "tier": "paid", "sha256": "a" * 64}
    assert tomllib.loads((tmp_path / "keys.toml").read_text()) == {"keys": [{**expected, "created_at": AT}]}
    assert json.loads((tmp_path / "keys.json").read_text()) == {"keys": [{**expected, "created_at": "2026-05-01T12:30:00Z"}]}


def test_its_owner_alone_may_read_a_new_one_and_nothing_but_a_lock_is_left_beside(file: Path) -> None:
    before = os.umask(0)
    try:
        change_keys(file, put(ADA), creates=True)
        change_keys(file, put(BOB))
    finally:
        os.umask(before)
    for path in (file, Path(f"{file}.lock")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(file.parent) == sorted([file.name, f"{file.name}.lock"])


def test_whoever_may_read_it_may_read_it_after_a_change(file: Path) -> None:
    """A server that reads it as one of the group hears of a revocation."""
    change_keys(file, put(ADA), creates=True)
    file.chmod(0o640)
    change_keys(file, put())
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / file.name
    file.symlink_to(real)
    change_keys(file, put(ADA), creates=True)
    assert file.is_symlink()
    assert read_keys(real) == (ADA,)


BROKEN = {
    "nothing": b"",
    "no list": b"# keys\n",
    "cut off": b'[[keys]]\ntenant = "ada"\ntier = "pa',
    "no text": b"\xff\xfe[[keys]]",
    "another file": b'workers = 3\nkeys = []\n[[tiers]]\nname = "paid"\n',
    "no digest": b'[[keys]]\ntenant = "ada"\ntier = "paid"\n',
    "unknown field": b'[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "' + b"a" * 64 + b'"\nkey = "sk-secret"\n',
    "the key itself": b'[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "sk-secret"\n',
    "twice": b"".join(b'[[keys]]\ntenant = "t"\ntier = "paid"\nsha256 = "' + b"a" * 64 + b'"\n' for _ in range(2)),
    "same id": b"".join(
        b'[[keys]]\ntenant = "t"\ntier = "paid"\nid = "one"\nsha256 = "' + digit * 64 + b'"\n' for digit in (b"a", b"b")
    ),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_understood_is_told_in_a_line_and_not_overwritten(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "keys.toml"
    file.write_bytes(data)
    for act in (lambda: read_keys(file), lambda: change_keys(file, put(ADA), creates=True)):
        with pytest.raises(ConfigError, match=r"cannot read the keys file .*keys.toml") as raised:
            act()
        assert "\n" not in str(raised.value)
        assert "sk-secret" not in str(raised.value)
    assert file.read_bytes() == data
    assert names(tmp_path) == ["keys.toml", "keys.toml.lock"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"keys": [{}]}', b'{"keys": 3}', b'{"keys": [], "x": 1}', b"\xff"])
def test_neither_is_broken_json(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=r"cannot read the keys file"):
        change_keys(file, put(ADA), creates=True)
    assert file.read_bytes() == data


def test_a_missing_file_is_made_on_demand_alone(file: Path) -> None:
    for act in (lambda: read_keys(file), lambda: change_keys(file, put(ADA))):
        with pytest.raises(MissingKeysFile, match=f"`batcher keys create --file {file} ") as raised:
            act()
        assert str(file) in str(raised.value)
    assert not file.exists()
    with pytest.raises(ConfigError, match=r"cannot write the keys file .*No such file"):
        change_keys(file.parent / "nowhere" / file.name, put(ADA), creates=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_keys(file.parent)


def test_a_change_that_cannot_be_leaves_the_file_as_it_was(file: Path) -> None:
    change_keys(file, put(ADA), creates=True)
    with pytest.raises(ConfigError, match="configured twice"):
        change_keys(file, lambda before: (*before, ADA))
    assert read_keys(file) == (ADA,)


@pytest.mark.parametrize("broken", ["fsync", "replace", "fchown"])
def test_a_disk_that_fails_leaves_the_file_as_it_was(file: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    change_keys(file, put(ADA), creates=True)
    before = file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(ConfigError, match=r"cannot write the keys file .*No space left"):
        change_keys(file, put(BOB))
    assert file.read_bytes() == before
    assert names(file.parent) == sorted([file.name, f"{file.name}.lock"])


def test_a_reader_sees_a_whole_file_at_each_step_of_a_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_keys(file, put(ADA), creates=True)
    seen: list[Keys] = []
    for name in ("fchown", "fsync", "replace"):
        real = getattr(os, name)

        def looked(*arguments: object, real: Callable[..., object] = real) -> None:
            seen.append(read_keys(file))
            real(*arguments)
            seen.append(read_keys(file))

        monkeypatch.setattr(os, name, looked)
    change_keys(file, put(BOB))
    assert seen == [(ADA,)] * 5 + [(BOB,)] * 3


def test_a_lock_that_is_not_let_go_is_waited_for_so_long_and_no_longer(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_file, "LOCK_WAIT_S", 0.01)

    def change_within(before: Keys) -> Keys:
        change_keys(file, put(BOB), creates=True)
        raise AssertionError("two at once")

    with pytest.raises(ConfigError, match=r"another command has held .*\.lock for 0\.01 s"):
        change_keys(file, change_within, creates=True)
    change_keys(file, put(ADA), creates=True)  # The first one's end has let it go.


def test_a_file_that_is_none_of_keys_is_not_read_to_its_end(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_file, "MAX_FILE_BYTES", 100)
    file.write_bytes(b"#" * 101)
    with pytest.raises(ConfigError, match="larger than 100 bytes"):
        read_keys(file)


def test_a_pipe_is_no_keys_file_and_holds_up_nobody(file: Path) -> None:
    os.mkfifo(file)
    for act in (lambda: read_keys(file), lambda: change_keys(file, put(ADA), creates=True)):
        with pytest.raises(ConfigError, match=rf"cannot read the keys file .*{file.name}: it is no regular file"):
            act()
    assert file.is_fifo()


# Whose the lock is


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is given away: (user, group) in order. Only root could."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda handle, user, group: given.append((user, group)))
    return given


def owned(monkeypatch: pytest.MonkeyPatch, owned: Path, user: int, group: int) -> None:
    """As if it were theirs."""
    real = Path.stat

    def told(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = real(path, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], user, group, *status[6:])) if path == owned else status

    monkeypatch.setattr(Path, "stat", told)


@pytest.mark.parametrize(
    ("mode", "lock_mode"), [(0o600, 0o600), (0o640, 0o640), (0o660, 0o660), (0o755, 0o644), (0o400, 0o600)]
)
def test_a_lock_is_whose_the_file_is_whoever_makes_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, given: list[tuple[int, int]], mode: int, lock_mode: int
) -> None:
    """Made by root and root's own, it let nobody else change a key any more."""
    change_keys(file, put(ADA), creates=True)
    lock = Path(f"{file}.lock")
    lock.unlink()
    given.clear()
    file.chmod(mode)
    owned(monkeypatch, file, 1234, 5678)
    change_keys(file, put(BOB))
    assert given[:2] == [(-1, 5678), (1234, -1)]
    assert stat.S_IMODE(lock.stat().st_mode) == lock_mode
    lock.chmod(0o666)
    change_keys(file, put(ADA))
    assert stat.S_IMODE(lock.stat().st_mode) == 0o666, "one that was there is nobody's to change"


def test_while_there_is_no_file_a_lock_is_its_folder_s_owner_s(
    file: Path, monkeypatch: pytest.MonkeyPatch, given: list[tuple[int, int]]
) -> None:
    owned(monkeypatch, file.parent, 1234, 5678)
    change_keys(file, put(ADA), creates=True)
    assert given[:2] == [(-1, 5678), (1234, -1)]
    assert stat.S_IMODE(Path(f"{file}.lock").stat().st_mode) == 0o600


def test_a_lock_that_cannot_be_given_away_locks_all_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    change_keys(file, put(ADA), creates=True)
    assert read_keys(file) == (ADA,)


def test_a_lock_that_cannot_be_opened_is_named(file: Path) -> None:
    change_keys(file, put(ADA), creates=True)
    lock = Path(f"{file}.lock")
    lock.unlink()
    lock.mkdir()
    with pytest.raises(ConfigError, match=f"cannot write the keys file {file}: cannot open its lock {lock}: Is a directory"):
        change_keys(file, put(BOB))
    assert read_keys(file) == (ADA,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_after_root_made_a_key_its_owner_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    change_keys(file, put(ADA), creates=True)
    Path(f"{file}.lock").unlink()
    for path in (tmp_path, file):
        os.chown(path, 65_534, 65_534)
    change_keys(file, put(BOB))
    owners = [(path.stat().st_uid, path.stat().st_gid) for path in (file, Path(f"{file}.lock"))]
    assert owners == [(65_534, 65_534)] * 2
