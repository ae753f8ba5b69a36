"""Runs the service under uvicorn: the fast path, the drain, and an exit code of 0 after a drain.

On SIGTERM, SIGINT or SIGHUP (its terminal was closed) the server keeps listening and answers new requests with 529 and
`Connection: close`, so that whoever balances load sees it leave; uvicorn's own shutdown, which follows, would only close
connections. A second signal gives up what is still pending.
"""

import asyncio
import functools
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import uvicorn

from batcher.errors import ConfigError
from batcher.service import log
from batcher.service.app import create_app
from batcher.service.auth import OPERATOR_KEY
from batcher.service.fastpath import FastPathProtocol
from batcher.service.memory import Trimmer
from batcher.service.service import Service
from batcher.settings import Settings

_BACKLOG = 4096
"""Connections that may wait to be accepted: a load test opens thousands at once."""

_UNSENT_BYTES = 16_384
"""What the system may hold of a connection's replies before it has sent them. By itself it takes megabytes, and then a client
that reads nothing cannot be told from one that does until its answer is over."""

_TRIM_TICKS = 100
"""A tick is a tenth of a second."""

_LOOK_S = 0.05
"""Between two looks at what clients have not taken."""

_MAX_FILES = 65_536
"""More than the connections that are let in."""
_KEPT_FILES = 256
"""For all that is no connection: workers and their pipes, Redis, the files of keys and usage."""


class Server(uvicorn.Server):
    """uvicorn's server with our signals. `_drain_task` exists from the first signal on."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._drain_task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        """A second signal has come."""
        self._trimmer = Trimmer()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        signals = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As `nohup` has it.
            signals.append(signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._drain_task is None:
            self._drain_task = asyncio.get_running_loop().create_task(self._drain(number.name))
        elif number == signal.SIGHUP:
            pass  # A terminal that is closed sends it twice: its shell does, and the system when that has ended.
        elif not self.should_exit:
            log.warning("drain_cut_short", cause=number.name, live=self.service.num_live)
            self._hurry.set()
            self.service.abandon()
            self.service.front.abandon()
        elif number == signal.SIGINT:
            self.force_exit = True

    async def _drain(self, cause: str) -> None:
        """Ends when everything accepted has been answered and taken, or given up at the deadline or at a second signal."""
        service = self.service
        log.event("draining", cause=cause, live=service.num_live)
        try:
            service.drain()
            async with asyncio.timeout(service.http.drain_deadline_s):
                await service.wait_idle()
                await service.front.wait_idle()
                await self._wait_taken()
            if not self._hurry.is_set():
                log.event("drained")
        except TimeoutError:
            log.warning("drain_deadline_passed", live=service.num_live)
            service.abandon()
        except Exception as error:
            log.error("drain_failed", exc_info=error)
        finally:
            self.should_exit = True

    async def _wait_taken(self) -> None:
        """Until no answer waits here for its client to take it. Whoever takes none of a long one is cut off meanwhile."""
        while any(connection.transport.get_write_buffer_size() for connection in self.server_state.connections):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._hurry.wait()
                    return

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in self.servers[0].sockets:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)  # Connections inherit it.
        # What the start has made stays for good, and a request leaves no cycles behind: the collector has little to look for,
        # and looks seldom. Its pauses would be in somebody's latency.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)

        self._log_listening()

    async def on_tick(self, counter: int) -> bool:
        if self.service.config_error is not None:
            self.should_exit = True
        if counter % _TRIM_TICKS == 0:
            self._trimmer.trim()
        return await super().on_tick(counter)

    def _log_started_message(self, listeners: Sequence[socket.SocketType]) -> None:
        """uvicorn's words for it; ours are in `startup`, which also knows of sockets that were bound before."""

    def _log_listening(self) -> None:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        settings = self.service.settings
        log.event(
            "listening",
            url=url,
            **self.service.describe(),
            keys="configured"
            if settings.has_keys
            else ", ".join((*(f"dev-{tier.name}" for tier in settings.tiers), OPERATOR_KEY)),
        )


def create_server(settings: Settings) -> Server:
    """Everything of it, not started yet. Raises ConfigError."""
    app = create_app(settings)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=functools.partial(FastPathProtocol, endpoint=service.run, whole=service.whole, http=service.http),  # type: ignore[arg-type]
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=service.http.keep_alive_s,  # type: ignore[arg-type]
        timeout_graceful_shutdown=1,
    )
    return Server(config, service)


def serve(settings: Settings) -> None:
    """Serves until a signal, then drains and returns.

    Raises ConfigError: at once, or, for what only the workers can find out, when the first of them has.
    """
    asked = settings
    settings = msgspec.structs.replace(asked, max_connections=_most_connections(asked.max_connections, _raise_file_limit()))
    server = create_server(settings)
    listener = _listen(settings.host, settings.port)
    if settings != asked:
        reason = f"{asked.max_connections} and {_KEPT_FILES} files of our own are more than this process may open"
        log.event("max_connections_lowered", max_connections=settings.max_connections, reason=reason)
    log.event("settings", **settings.in_force())
    server.run(sockets=[listener])
    if (error := server.service.config_error) is not None:
        raise error


def leave() -> None:
    """Ends the process with status 0 if a thread is left that does not return: a load, a step or a batch that hangs.

    The interpreter's own end takes its memory from under such a thread, and one inside of native code then crashes the process.
    """
    if any(thread.daemon for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # As it is where it was closed from the start.
                stream.flush()
        os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    """Bound before anything starts: workers that load for minutes must not find the port taken after all."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family)  # For its own error, which `create_server` would make an unknown one.
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror:
        raise ConfigError(f"--host {host} has no address: it is no name or address of this machine") from None
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}; choose another with --port"
        ) from None


def _most_connections(wanted: int, max_files: int) -> int:
    """No more than there are descriptors for: who holds the last of them would keep workers from starting, the keys file from
    being read and usage from being recorded."""
    return min(wanted, max(max_files - _KEPT_FILES, max_files // 2))


def _raise_file_limit() -> int:
    """Each connection is a file descriptor, and the usual soft limit of 1,024 is fewer than one load test opens. Returns the
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("file_limit_stays", limit=soft, reason=str(error))
            return soft
    return max(soft, wanted)
