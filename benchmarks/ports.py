"""Ports of this machine for servers that must be told theirs: they come back at the same one, or cannot say which they took."""

import random
import socket

_FIRST, _LAST = 20_000, 32_767
"""Below those of outgoing connections (from 32768 on by Linux's default, 49152 by IANA): such a one might have a server's port
while it is down."""
_MAX_DRAWS = 1_000


def free_port() -> int:
    """One that nobody listens on, drawn anew each time, so that those who look at once hardly find the same. Raises OSError
    where there is none."""
    draws = random.SystemRandom()
    for _ in range(_MAX_DRAWS):
        port = draws.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {_MAX_DRAWS} ports from {_FIRST} to {_LAST} is free")
