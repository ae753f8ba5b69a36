"""The last words of what writes behind the event loop's back: written on a thread, since each may take seconds.

On the loop, a disk or a collector that hangs would stop everything else that ends at the same time: connections, workers, the
second signal of somebody who has waited enough. The standard library's executor was refused: the process would wait for it.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from batcher.service import log


async def close_in_order(closes: Sequence[Callable[[], None]], *, within_s: float) -> None:
    """Calls one after another, whatever the one before raised; returns when all have, or after `within_s`.

    What is not done by then goes on until the process ends, which waits for none of it.
    """
    loop = asyncio.get_running_loop()
    closed: asyncio.Future[None] = loop.create_future()

    def set_closed() -> None:
        if not closed.done():
            closed.set_result(None)

    def work() -> None:
        for close in closes:
            try:
                close()
            except Exception as error:
                log.error("close_failed", exc_info=error)
        with suppress(RuntimeError):  # The loop is closed: nobody waits.
            loop.call_soon_threadsafe(set_closed)

    thread = threading.Thread(target=work, name="closing", daemon=True)
    thread.start()
    try:
        async with asyncio.timeout(within_s):
            await closed
    except TimeoutError:
        log.warning("close_left_behind", within_s=within_s)
    else:
        thread.join()  # It has said its last word: this takes microseconds.
