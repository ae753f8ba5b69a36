"""Only a regular file is read: what has no end that can be relied on is refused, and at once."""

import os
import re
import socket
from pathlib import Path

import pytest

from batcher.regular_file import open_regular


def test_a_file_is_opened_also_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"words")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"words"


def test_a_pipe_that_nobody_writes_to_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=re.escape(f"it is no regular file: '{tmp_path / 'pipe'}'")):
        open_regular(tmp_path / "pipe")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(OSError, match="it is no regular file"):
        open_regular(Path(device))


def test_a_folder_and_a_socket_are_refused_in_the_system_s_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # A socket's name must be short.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(OSError, match="No such device or address"):
            open_regular(Path("socket"))
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_nothing_stays_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/dev/fd")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match=r"no regular file|Is a directory"):
            open_regular(tmp_path / name)
    assert set(os.listdir("/dev/fd")) <= set(before)
