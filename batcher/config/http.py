"""The HTTP side of the service."""

from ipaddress import ip_address

import msgspec

from batcher.config.checks import require_between


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side of the service."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose; the log line `listening` tells which."""
    max_body_bytes: int = 1_000_000
    max_pending_body_bytes: int = 128 * 2**20
    """Of the bodies over 16 KiB of all requests together that are being received, and on the ASGI way until they are answered;
    beyond it one is refused with a 529. A tenant may fill half of it."""
    body_timeout_s: float = 10.0
    """What a request may take to arrive whole from its first byte on, and what a client may leave a reply or stream untaken."""
    keep_alive_s: float = 75.0
    """How long an idle connection is kept."""
    max_connections: int = 20_000
    """Bounds file descriptors and memory; beyond it a connection is refused with a plain 529."""
    request_timeout_s: float = 10.0
    """A request without an answer after this time ends as 504, wherever it is; in continuous mode one that has not started."""
    ping_interval_s: float = 5.0
    """A stream that was silent for so long says that it lives: proxies cut what is silent for a minute."""
    drain_deadline_s: float = 30.0
    """On SIGTERM, how long accepted requests may take to end before they are given up."""

    def __post_init__(self) -> None:
        require_between("port", self.port, 0, 65535)
        require_between("max_body_bytes", self.max_body_bytes, 64, 100_000_000, "bytes")
        require_between("max_pending_body_bytes", self.max_pending_body_bytes, 128, 2**40, "bytes")
        require_between("body_timeout", self.body_timeout_s, 0.01, 600.0, "seconds")
        require_between("keep_alive", self.keep_alive_s, 0.01, 3600.0, "seconds")
        require_between("max_connections", self.max_connections, 1, 1_000_000)
        require_between("request_timeout", self.request_timeout_s, 0.001, 3600.0, "seconds")
        require_between("ping_interval", self.ping_interval_s, 0.001, 600.0, "seconds")
        require_between("drain_deadline", self.drain_deadline_s, 0.0, 3600.0, "seconds")

    @property
    def is_loopback(self) -> bool:
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
