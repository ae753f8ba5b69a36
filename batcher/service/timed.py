"""The clocks of one HTTP connection: how long it may idle, bring in a message, leave its replies untaken, and linger.

They stand apart from what is said on the connection (`fastpath.py`), which tells them what it waits for and is told when that
takes too long.
"""

import asyncio
from abc import abstractmethod
from math import inf
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batcher.config import HttpConfig
from batcher.errors import RequestTimeout, ServiceError
from batcher.service.run_cycle import RunCycle

_LINGER_S = 2.0
"""How long a connection that was refused in mid-message is still read, so that the refusal is not lost in a reset."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with clocks of its own.

    `_is_reading` while a message has begun and is not complete, `_is_reading_head` until its headers are. `_reading_timer` runs
    while it is the client that we wait for, `_writing_timer` while the client takes no replies, and the linger uses the first
    again. Once `_is_deaf`, whatever arrives is thrown away.
    """

    cycle: Any

    def __init__(self, *, http: HttpConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._http = http
        self._is_reading = False
        self._is_reading_head = False
        self._is_deaf = False
        self._is_lingering = False
        self._idle_since = inf
        self._reading_timer: asyncio.TimerHandle | None = None
        self._writing_timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def _refuse_message(self, error: ServiceError) -> None:
        """Refuses what is coming in, and hears nothing more."""

    @property
    def _has_ended(self) -> bool:
        """Whether nothing may be written any more."""
        return self._is_lingering or self.transport.is_closing()

    # Idle.

    def _arm_keep_alive(self) -> None:
        """Idle from now on. One timer runs on and looks again: to set and cancel one for each request costs more."""
        if self._idle_since == inf:
            self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = inf

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0.0:
            self._close()
        elif left_s != inf:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)

    # Reading.

    def _watch_reading(self) -> None:
        """Bounds the time of the message that is coming in, while it is the client that we wait for."""
        is_ours = self._is_reading_head or isinstance(self.cycle, RunCycle)  # A body on the ASGI way has a timeout there.
        if self._is_reading and is_ours and not self._is_deaf and not self.flow.read_paused:
            if self._reading_timer is None:
                self._reading_timer = self.loop.call_later(self._http.body_timeout_s, self._on_reading_timeout)
        elif self._reading_timer is not None and not self._is_lingering:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _on_reading_timeout(self) -> None:
        self._refuse_message(RequestTimeout(f"the request did not arrive within {self._http.body_timeout_s:g} s"))

    # Writing.

    def pause_writing(self) -> None:
        """The client does not take its replies: it gets no more until it does, and not for ever."""
        super().pause_writing()
        self.flow.pause_reading()
        self._watch_reading()
        self._writing_timer = self.loop.call_later(self._http.body_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing_timer is not None:
            self._writing_timer.cancel()
            self._writing_timer = None

    # The end.

    def _linger(self) -> None:
        """Ends the connection, a little later: what the client still sends is thrown away meanwhile."""
        self._is_deaf = self._is_lingering = True
        self._cancel_timers()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._reading_timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _close(self) -> None:
        """Ends the connection once its replies are taken, or when they have not been taken in time."""
        self._is_deaf = True
        self.transport.close()
        if self._writing_timer is None:
            self._writing_timer = self.loop.call_later(self._http.body_timeout_s, self.transport.abort)

    def _cancel_timers(self) -> None:
        for timer in (self.timeout_keep_alive_task, self._reading_timer, self._writing_timer):
            if timer is not None:
                timer.cancel()
        self.timeout_keep_alive_task = self._reading_timer = self._writing_timer = None
