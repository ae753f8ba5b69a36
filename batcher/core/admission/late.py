"""Who was let in and found no place after all is told so, while there is still time to go elsewhere (CASES B59).

The gate lets in by what it knows then. If capacity halves, or higher tiers bring more, a lower tier's queue that was right is
too long: those in it wait for what higher tiers leave, which may be nothing until their own deadline, and a 504 after half a
minute is the worst answer there is. The first tier is served first and loses nothing by what waits behind it, so what it has
let in it serves, if late. To refuse at once at the loss whoever would pass a budget was refused: a worker is back in a second
or two, and most of them would have been served meanwhile.
"""

from math import ceil, isfinite

from batcher.errors import MAX_RETRY_AFTER_S, Overloaded

MAX_LATE = 4.0
"""Budgets after which a lower tier's request that has found no place is refused after all."""


def no_place(waited_s: float, wait_s: float) -> Overloaded:
    """What it is told that has waited in vain, and would wait for so long if it came now; perhaps for ever."""
    seconds = min(max(1, ceil(wait_s)), MAX_RETRY_AFTER_S) if isfinite(wait_s) else MAX_RETRY_AFTER_S
    return Overloaded(f"no place became free for this tier in {waited_s:.1f} s", retry_after_s=seconds)
