"""`batcher keys` as people type it."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

import batcher.__main__ as command_line
from batcher.errors import Unprinted
from batcher.keys import command
from batcher.keys.file import change_keys, read_keys
from tests.outputs import WAYS, run, run_unread

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BATCHER_")]:
        monkeypatch.delenv(name)


class Typing:
    """Calls the entry point as the shell would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: Path) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self.file = file
        self.err = ""

    def __call__(self, *arguments: str, status: int = 0, file: Path | None = None) -> str:
        """What it prints."""
        self._monkeypatch.setattr(sys, "argv", ["batcher", "keys", *arguments, "--file", str(file or self.file)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        out, self.err = self._capfd.readouterr()
        assert (ended.value.code or 0) == status, self.err
        return out

    def create(self, *more: str, tenant: str = "ada", tier: str = "paid") -> str:
        return self("create", "--tenant", tenant, "--tier", tier, *more).strip()


@pytest.fixture(params=["keys.toml", "keys.json"])
def keys(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Typing:
    return Typing(monkeypatch, capfd, tmp_path / str(request.param))


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def test_a_key_is_printed_once_and_only_its_digest_is_kept(keys: Typing) -> None:
    secret = keys.create("--operator", "--requests-per-minute", "60", "--tokens-per-minute", "9000")
    assert re.fullmatch(r"sk-batcher-[0-9a-f]{64}", secret)
    (key,) = read_keys(keys.file)
    assert (key.tenant, key.tier, key.sha256, key.is_operator) == ("ada", "paid", digest_of(secret), True)
    assert (key.requests_per_minute, key.tokens_per_minute) == (60, 9000)
    assert key.created_at is not None
    assert re.fullmatch("key_[0-9a-f]{12}", key.key_id)
    assert key.key_id in keys.err
    assert secret not in keys.err + keys.file.read_text() + keys("list") + keys.err


def test_keys_are_all_different(keys: Typing) -> None:
    assert len({keys.create() for _ in range(5)}) == 5
    stored = read_keys(keys.file)
    assert len({key.key_id for key in stored}) == len({key.sha256 for key in stored}) == 5


def test_the_list_shows_who_has_what(keys: Typing) -> None:
    keys.create()
    keys.create("--operator", "--tokens-per-minute", "500", tenant="bob", tier="free")
    head, ada, bob = keys("list").splitlines()
    first, second = read_keys(keys.file)
    assert head.split() == ["id", "tenant", "tier", "operator", "requests/min", "tokens/min", "created", "rotated"]
    assert ada.split()[:6] == [first.key_id, "ada", "paid", "no", "tier's", "tier's"]
    assert bob.split()[:6] == [second.key_id, "bob", "free", "yes", "tier's", "500"]
    assert not any(key.sha256[:16] in head + ada + bob for key in (first, second))


def test_a_rotated_key_is_the_same_key_with_another_secret(keys: Typing) -> None:
    old = keys.create("--requests-per-minute", "60")
    keys.create(tenant="bob")
    before, bob = read_keys(keys.file)
    secret = keys("rotate", before.key_id).strip()
    after, still_bob = read_keys(keys.file)
    assert secret != old
    assert after.sha256 == digest_of(secret)
    assert (after.key_id, after.tenant, after.created_at, after.requests_per_minute) == (
        *(before.key_id, "ada", before.created_at, 60),
    )
    assert after.rotated_at is not None
    assert still_bob == bob


def test_a_key_without_an_id_of_its_own_keeps_the_one_it_went_by(keys: Typing) -> None:
    if keys.file.suffix == ".json":
        keys.file.write_text('{"keys": [{"tenant": "ada", "tier": "paid", "sha256": "%s"}]}' % ("a" * 64))
    else:
        keys.file.write_text(f'[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "{"a" * 64}"\n')
    keys("rotate", "key_aaaaaaaaaaaa")
    assert [key.key_id for key in read_keys(keys.file)] == ["key_aaaaaaaaaaaa"]


def test_a_revoked_key_is_gone(keys: Typing) -> None:
    keys.create()
    keys.create(tenant="bob")
    ada, bob = read_keys(keys.file)
    assert keys("revoke", ada.key_id) == ""
    assert "revoked" in keys.err
    assert read_keys(keys.file) == (bob,)
    keys("revoke", bob.key_id)
    assert len(keys("list").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--tenant", "a b", "--tier", "paid"], "tenant of a key is 'a b'"),
        (["create", "--tenant", "ada\n", "--tier", "paid"], "tenant of a key"),
        (["create", "--tenant", "ada", "--tier", "gold"], "tier is 'gold'; it must be paid or free"),
        (
            ["create", "--tenant", "ada", "--tier", "paid", "--requests-per-minute", "0"],
            "requests_per_minute of ada's key is 0",
        ),
        (["revoke", "key_0"], "there is no key 'key_0'"),
        (["rotate", "key_0\r\nx"], "there is no key 'key_0\\r\\nx'"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2_and_changes_nothing(keys: Typing, arguments: list[str], words: str) -> None:
    keys.create()
    before = keys.file.read_bytes()
    assert keys(*arguments, status=2) == ""
    (line,) = keys.err.splitlines()
    assert line.startswith("batcher: ")
    assert words in line
    assert keys.file.read_bytes() == before


@pytest.mark.parametrize("command", [["list"], ["revoke", "key_0"], ["rotate", "key_0"]])
def test_a_file_that_is_not_there_is_told_with_what_makes_one(keys: Typing, command: list[str]) -> None:
    assert keys(*command, status=2) == ""
    assert f"batcher keys create --file {keys.file}" in keys.err
    assert not keys.file.exists()


def test_an_empty_name_is_no_file() -> None:
    """It would be the current folder, and its lock would lie beside that."""
    for words in ("list", "create --tenant ada --tier paid", "revoke key_0", "rotate key_0"):
        ended = run(f"keys {words} --file ''")
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "batcher: --file is ''; it must be a path\n")


def test_tiers_and_the_file_are_those_of_the_server(
    keys: Typing, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """B17: by the same names, whichever of the two is told."""
    config = tmp_path / "batcher.toml"
    config.write_text(f'host = "0.0.0.0"\nkeys-file = "{keys.file}"\n[[tiers]]\nname = "gold"\n')
    keys.create("--config", str(config), tier="gold")
    monkeypatch.setenv("BATCHER_CONFIG", str(config))
    command = ["batcher", "keys", "create", "--tenant", "bob", "--tier", "gold"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        command_line.main()
    assert [key.tenant for key in read_keys(keys.file)] == ["ada", "bob"]
    monkeypatch.delenv("BATCHER_CONFIG")
    monkeypatch.setattr(sys, "argv", [*command[:-1], "paid"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert "--file, BATCHER_KEYS_FILE or keys_file" in capfd.readouterr().err
    monkeypatch.setenv("BATCHER_KEYS_FILE", str(keys.file))
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert not ended.value.code
    assert [key.tier for key in read_keys(keys.file)] == ["gold", "gold", "paid"]


def test_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    """Real processes on one file: each reads, changes and replaces it within its turn."""
    file = tmp_path / "keys.toml"
    code = (
        "import sys\nfrom batcher.keys.file import StoredKey, change_keys\nfrom pathlib import Path\n"
        "for n in range(10):\n"
        "    key = StoredKey(tenant=f'{sys.argv[1]}{n}', tier='paid', sha256=(sys.argv[1] + str(n)) * 32)\n"
        "    change_keys(Path(sys.argv[2]), lambda before: (*before, key), creates=True)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name, str(file)], cwd=ROOT) for name in ("a", "b", "c")]
    command = [sys.executable, "-m", "batcher", "keys", "create", "--tenant", "d", "--tier", "paid", "--file", str(file)]
    typed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    keys = read_keys(file)
    assert sorted(key.tenant for key in keys) == sorted([*(f"{name}{n}" for name in "abc" for n in range(10)), "d"])
    assert digest_of(typed.stdout.strip()) in {key.sha256 for key in keys}


# A key that cannot be shown


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_key_that_cannot_be_shown_is_not_made(tmp_path: Path, way: str) -> None:
    """Whoever has lost it would have a tenant more and nobody to ask; so the file is as it was."""
    file = tmp_path / "keys.toml"
    create = f"keys create --file {file} --tenant ada --tier paid"
    assert run(create).returncode == 0
    before = read_keys(file)
    ended = run(create + way)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, line.startswith("batcher: standard output ")) == (1, True)
    assert "nothing was done" in line or "the change of the keys file is undone" in line
    assert read_keys(file) == before


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_key_whose_new_secret_cannot_be_shown_keeps_its_old_one(tmp_path: Path, way: str) -> None:
    file = tmp_path / "keys.toml"
    assert run(f"keys create --file {file} --tenant ada --tier paid").returncode == 0
    before = read_keys(file)
    ended = run(f"keys rotate {before[0].key_id} --file {file}{way}")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1)
    assert read_keys(file) == before


def test_a_key_whose_reader_has_gone_is_not_made_and_that_is_told(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ended = run_unread(f"keys create --file {file} --tenant ada --tier paid")
    assert (ended.returncode, read_keys(file)) == (1, ())
    assert "Broken pipe; the key could not be shown" in ended.stderr


@pytest.mark.parametrize("verb", ["create", "rotate"])
def test_a_change_that_can_neither_be_shown_nor_undone_is_told_with_what_helps(
    keys: Typing, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    keys.create()
    (before,) = read_keys(keys.file)

    def break_all() -> NoReturn:
        monkeypatch.setattr(os, "replace", fail)
        raise Unprinted("standard output takes nothing: No space left on device")

    def fail(*_: object) -> NoReturn:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(command, "printing", break_all)
    words = ["create", "--tenant", "bob", "--tier", "paid"] if verb == "create" else ["rotate", before.key_id]
    assert keys(*words, status=1) == ""
    (line,) = keys.err.splitlines()
    lost = read_keys(keys.file)[-1]
    assert "No space left on device; nobody has the secret of" in line
    assert "Read-only file system" in line
    assert f"`batcher keys rotate {lost.key_id}` gives it another" in line
    assert lost.sha256 != before.sha256


def test_what_another_command_did_meanwhile_is_not_undone(keys: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.create()
    (before,) = read_keys(keys.file)

    def be_overtaken() -> NoReturn:
        change_keys(keys.file, lambda now: (msgspec.structs.replace(now[0], sha256="f" * 64),))
        raise Unprinted("standard output takes nothing: No space left on device")

    monkeypatch.setattr(command, "printing", be_overtaken)
    keys("rotate", before.key_id, status=1)
    assert [key.sha256 for key in read_keys(keys.file)] == ["f" * 64]


def test_a_key_is_shown_also_where_nothing_can_be_told_beside(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ended = run(f"keys create --file {file} --tenant ada --tier paid 2>&-")
    assert (ended.returncode, digest_of(ended.stdout.strip())) == (0, read_keys(file)[0].sha256)
