"""One gateway's line to Redis: bounded waits, no retries, and no waiting at all while Redis is known to be away.

The client's own retries are off. A script whose reply was lost may have run: whether it may run twice is for its owner to say,
and a correction that is applied twice would let more in than the limit says. After a failure nobody waits for a timeout any
more: calls fail in microseconds until Redis has answered a ping, which is tried again and again beside them.

Of the client only its connections are used, with its parser and all that an address may ask for. Its commands and its pool were
refused: they cost twice as much again, for each call.

Redis 6 or later, and not Redis Cluster, as the scripts make their own keys. Its memory policy must be `noeviction`: a counter
that is evicted is a limit that is not kept. For a crash of it to forget nothing it needs `appendonly yes` with `appendfsync
always` (or `no`, where its machine does not fall): with `everysec` it confirms writes that it has not handed to the operating
system yet, while a sync is under way, and a crash may forget two seconds of them, as may a failover to a replica.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from hashlib import sha1
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

from batcher.config import without_password
from batcher.errors import ConfigError
from batcher.service import log

try:
    from redis.asyncio import ConnectionPool
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, ResponseError
except ImportError as error:
    raise ConfigError("redis: the setting needs the package redis: pip install 'batcher[redis]'") from error

_HEALTH_S = 1.0
"""How often an idle line is tried, so that it is known to be away before a request finds it out."""

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0
"""Between tries while Redis is away: doubling, so that one which restarts is used again within a second of its being ready."""

_COMPLAINT_S = 10.0
"""An error that Redis answers with (read-only, out of memory) may be every call's: it is logged so often at most."""

_REFUSING_S = 60.0
"""What it has refused it is taken to refuse for so long, unless it does it meanwhile; if nobody asks, nobody knows."""


class RedisAway(Exception):
    """Redis did not do it, or nobody knows whether it did."""


class Script:
    """A Lua file beside this module, known to Redis by its digest once it has run there."""

    def __init__(self, name: str) -> None:
        self.source = files(__package__).joinpath(name).read_text()
        self.sha = sha1(self.source.encode()).hexdigest()


class RedisLink:
    """Lives on one event loop.

    `is_away` is the circuit: True until the first answer and from a failure to the next answered ping. `back` is set while it
    is not, `_lost` while it is. `_watch` is the task that pings; nobody else turns the circuit on again. `_idle` are the
    connections that nobody uses, the last used last; `_connect` makes one.
    """

    def __init__(self, url: str, *, store: str, timeout_s: float, max_connections: int) -> None:
        """`store` is what it is used for, in the log. Raises ConfigError for an address that is none."""
        self.is_away = True
        self._refusing_until_at = 0.0
        """Until then it is taken to refuse what it is asked, as it did last: it takes no writes, say. Monotonic time."""
        self.back = asyncio.Event()
        self._lost = asyncio.Event()
        self.num_losses = 0
        self._timeout_s = timeout_s
        self._store = store
        self._address = without_password(url)
        self._connect = _connection_to(url, timeout_s)
        self._room = asyncio.Semaphore(max_connections)
        self._idle: list[AbstractConnection] = []
        self._watch: asyncio.Task[None] | None = None
        self._complain_at = 0.0

    async def start(self) -> None:
        """Returns once Redis has answered, or has failed to within the time limit: then it is tried further beside."""
        await self._try()
        self._watch = asyncio.get_running_loop().create_task(self._keep_watch())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        self.is_away = True
        self.back.clear()
        await self._drop_idle()

    async def run(self, script: Script, *arguments: bytes | str | int) -> object:
        """The script's reply. Raises RedisAway: at once while the circuit is open, else after the time limit at the latest."""
        if self.is_away:
            raise RedisAway
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    reply = await self._call("EVALSHA", script.sha, 0, *arguments)
                except NoScriptError:
                    # Redis has restarted, or its scripts were flushed; this one has not run.
                    reply = await self._call("EVAL", script.source, 0, *arguments)
        except ResponseError as error:
            self._refusing_until_at = time.monotonic() + _REFUSING_S
            self._complain(error)
            raise RedisAway from error
        except Exception as error:  # Whatever the client makes of what is no reply of Redis', too.
            await self._lose(error)
            raise RedisAway from error
        self._refusing_until_at = 0.0
        return reply

    @property
    def is_failing(self) -> bool:
        """Whether it is away, or refuses what it is asked."""
        return self.is_away or time.monotonic() < self._refusing_until_at

    async def _call(self, *command: bytes | str | int) -> object:
        async with self._room:
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                await connection.send_command(*command, check_health=False)
                reply: object = await connection.read_response()
            except ResponseError:
                self._idle.append(connection)
                raise
            except BaseException:
                # What it would say next belongs to this command.
                await connection.disconnect(nowait=True)
                raise
            self._idle.append(connection)
            return reply

    async def wait_back(self) -> None:
        """Returns when Redis is back, or after the time limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await self.back.wait()

    async def _keep_watch(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            if self.is_away:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
            else:
                backoff_s = _FIRST_BACKOFF_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HEALTH_S):
                        await self._lost.wait()
                        continue
            await self._try()

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._call("PING")
        except Exception as error:
            await self._lose(error)
            return
        if self.is_away:
            self.is_away = False
            self.back.set()
            self._lost.clear()
            log.event("redis_connected", store=self._store, redis=self._address)

    async def _lose(self, error: BaseException) -> None:
        if not self.is_away or self.num_losses == 0:
            self.is_away = True
            self.back.clear()
            self._lost.set()
            self.num_losses += 1
            # The kind alone: the text may repeat the address with its password.
            log.error("redis_away", store=self._store, redis=self._address, fault=type(error).__name__)
        await self._drop_idle()

    async def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().disconnect(nowait=True)

    def _complain(self, error: ResponseError) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAINT_S
            log.error("redis_refused", store=self._store, redis=self._address, fault=str(error)[:200])


def _connection_to(url: str, timeout_s: float) -> Callable[[], AbstractConnection]:
    """What makes connections. It is tried once, which sends nothing: the client takes an address apart without a look at its
    parameters. Raises ConfigError."""
    try:
        # The one time limit is ours, over connecting, sending and receiving together.
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        connect = partial(pool.connection_class, **pool.connection_kwargs)
        connect()
    except Exception as error:  # Of whatever kind: a parameter may be taken for any argument of the client's.
        # Not the parameters' values: there may be a password among them.
        names = ", ".join(parse_qs(urlsplit(url).query))
        raise ConfigError(
            f"redis is {without_password(url)!r}{names and f' with {names}'}; it must be redis://HOST:PORT/DB or rediss://..., "
            f"with parameters that the package redis takes ({type(error).__name__})"
        ) from None
    return connect
