"""Ports of this machine for servers that must be told theirs: they come back at the same one, or cannot say which they took."""

import socket
from random import SystemRandom

_FIRST, _LAST = 20_000, 32_767
"""Below those of outgoing connections (32768 and up on Linux, 49152 at IANA): such a one might have a server's
port while it is down."""


def free_port() -> int:
    """One that nobody listens on, drawn anew each time, so that those who look at once hardly find the same."""
    random = SystemRandom()
    while True:
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
