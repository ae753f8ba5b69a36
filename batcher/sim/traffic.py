"""Requests out of arrivals and a mix: what the loop brings to the front door.

A generator makes each request when the one before has been taken, so an hour of them needs no memory.
"""

from collections.abc import Iterator

from batcher.sim.workload import Arrivals, Mix, Sender, stream
from batcher.types import Request


def mix_of_paid_share(paid_share: float, *, num_tenants: int = 1) -> Mix:
    """Paid and free senders, so many of each, where paid ones send this share."""
    shares = {"paid": paid_share, "free": 1.0 - paid_share}
    return Mix(
        tuple(
            Sender(f"{tier}-{num}", tier, share / num_tenants)
            for tier, share in shares.items()
            if share > 0.0
            for num in range(num_tenants)
        )
    )


def requests(
    arrivals: Arrivals,
    mix: Mix,
    *,
    seed: int,
    duration_s: float,
    deadline_s: float,
    max_requests: int | None = None,
    input_size: int | None = None,
) -> Iterator[Request]:
    """Requests with ids from 0, until the duration or the number is reached.

    Instants and senders are those of a load test with the same arrivals, mix and seed. Each thing has a stream of its own, so
    another mix does not move the arrivals. The inputs are all the same one letter; with `input_size` each is different, and
    charged as up to so many bytes.
    """
    instants = arrivals.instants(stream(seed, "arrivals"))
    draws = mix.draws(stream(seed, "mix"))
    sizes = stream(seed, "sizes")
    senders = [(sender.key, sender.tier) for sender in mix.senders]
    for num, at in enumerate(instants):
        if at >= duration_s or num == max_requests:
            return
        tenant, tier = senders[next(draws)]
        if input_size is None:
            yield Request(num, tenant, tier, "x", 1, at, at + deadline_s)
        else:
            yield Request(num, tenant, tier, f"input {num}", 1 + sizes.randrange(input_size), at, at + deadline_s)
