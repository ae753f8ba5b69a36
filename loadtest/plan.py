"""What a run will do, decided before it starts.

The whole schedule is drawn up front from one seed: when each request is meant to leave, who sends it, and whether it is
poison. A generator that decides the next send after the last answer slows down with the server, and then reports the
latency of the requests that it did not send (coordinated omission); an absolute schedule cannot.
"""

import itertools
import math
from array import array

import msgspec

from batcher.errors import ConfigError
from batcher.sim.workload import Arrivals, Mix, Sender, stream
from loadtest.messages import Messages
from loadtest.samples import Samples, blank_samples
from loadtest.target import MIN_INPUT_SIZE, Target
from loadtest.tokens import blank_tokens

MAX_DURATION_S = 24 * 3600.0
MAX_REQUESTS = 5_000_000
"""A run's rows are kept in memory, about 35 bytes each: this many take 175 MB."""
MAX_SENDERS = 10_000
MAX_USERS = 10_000
"""Of a closed loop: each has a connection."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A run, completely: the same plan always draws the same schedule."""

    target: Target
    arrivals: Arrivals | None
    """When requests, or conversations, begin; None in a closed loop."""
    arrivals_name: str
    """The command line's spelling, for the report."""
    messages: Messages | None = None
    """What generated text is asked for; None for an endpoint that takes an `{input}`."""
    concurrency: int | None = None
    """So many users of a closed loop; None: the loop is open."""
    num_requests: int | None = None
    """A closed loop ends with this many, or with the duration."""
    mix: Mix
    duration_s: float
    seed: int = 0
    input_size: int = 100
    """Characters of each input."""
    poison_share: float = 0.0
    poison_prefix: str = "BOOM"
    poison_from_s: float = 0.0
    poison_to_s: float = math.inf
    """Poison is drawn only among requests due within these instants."""
    timeout_s: float = 10.0
    """A request without an answer after this long is given up, and its connection closed."""
    slo_s: float | None = 0.5
    """The latency that counts as good, for goodput. None: any."""
    slo_ttft_s: float | None = None
    """The TTFT that counts as good; None: any. So does an answer whose TTFT could not be measured."""
    slo_tpot_s: float | None = None
    """The same, of TPOT."""
    warm_connections: int | None = None
    """Connections opened before the run starts. None: half a second's worth of requests, 2 to 2,000."""
    max_connections: int | None = None
    """Most connections at once. None: five seconds' worth of requests, 64 to 20,000."""

    def __post_init__(self) -> None:
        if not 0.0 < self.duration_s <= MAX_DURATION_S:
            raise ConfigError(f"the duration must be more than 0 and at most {MAX_DURATION_S:g} s, not {self.duration_s}")
        if not 0.0 < self.timeout_s <= 600.0:
            raise ConfigError(f"the timeout must be more than 0 and at most 600 s, not {self.timeout_s}")
        for slo_s in (self.slo_s, self.slo_ttft_s, self.slo_tpot_s):
            if slo_s is not None and not slo_s > 0.0:
                raise ConfigError(f"the SLO must be more than 0 s, not {slo_s}")
        if (self.arrivals is None) is (self.concurrency is None):
            raise ConfigError("a run has arrivals or a concurrency, not both")
        if self.num_requests is not None and self.concurrency is None:
            raise ConfigError("a number of requests is for a closed loop: say the concurrency, too")
        for what, count, most in (("concurrency", self.concurrency, MAX_USERS), ("requests", self.num_requests, MAX_REQUESTS)):
            if count is not None and not 1 <= count <= most:
                raise ConfigError(f"{what}: from 1 to {most:,}, not {count}")
        if self.messages is not None and self.poison_share:
            raise ConfigError("poison is for an endpoint that takes an input, not for messages")
        if not 0.0 <= self.poison_share <= 1.0:
            raise ConfigError(f"the poison share must be from 0 to 1, not {self.poison_share}")
        if len(self.mix.senders) > MAX_SENDERS:
            raise ConfigError(f"at most {MAX_SENDERS:,} keys, not {len(self.mix.senders):,}")
        smallest = MIN_INPUT_SIZE + (len(self.poison_prefix) if self.poison_share else 0)
        if not smallest <= self.input_size <= 10_000_000:
            raise ConfigError(f"the input size must be from {smallest} to 10,000,000 characters, not {self.input_size}")
        for count in (self.warm_connections, self.max_connections):
            if count is not None and count < 1:
                raise ConfigError(f"at least one connection is needed, not {count}")


def draw_schedule(plan: Plan) -> Samples:
    """The plan's requests, none of them sent yet: of conversations the first turns, of a closed loop none.

    Raises `ConfigError` when there are none, or too many.
    """
    if plan.arrivals is None:
        return _blank(plan, array("d"), array("H"), bytearray())
    instants = plan.arrivals.instants(stream(plan.seed, "arrivals"))
    within = itertools.takewhile(lambda at: at < plan.duration_s, instants)
    planned_at = array("d", itertools.islice(within, MAX_REQUESTS + 1))
    if not planned_at:
        raise ConfigError(f"no request is due within {plan.duration_s:g} s; ask for a higher rate or a longer run")
    if len(planned_at) > MAX_REQUESTS:
        raise ConfigError(f"more than {MAX_REQUESTS:,} requests in one run; ask for a lower rate or a shorter run")
    num = len(planned_at)
    draws = plan.mix.draws(stream(plan.seed, "mix"))
    uniform = stream(plan.seed, "poison").random
    share = plan.poison_share
    is_poison = bytearray(uniform() < share and plan.poison_from_s <= at < plan.poison_to_s for at in planned_at)
    return _blank(plan, planned_at, array("H", itertools.islice(draws, num)), is_poison)


def _blank(plan: Plan, planned_at: "array[float]", sender: "array[int]", is_poison: bytearray) -> Samples:
    samples = blank_samples(plan.mix.senders, planned_at, sender, is_poison)
    if plan.messages is not None:
        samples.tokens = blank_tokens(len(samples))
    return samples


def parse_mix(spelling: str, *, key: str = "dev-{tier}") -> Mix:
    """The mix that `paid=0.2,free=0.8` names; each tier's key follows the pattern `key`. Raises `ConfigError`."""
    senders = []
    for part in spelling.split(","):
        tier, _, share = part.strip().partition("=")
        if not tier:
            raise ConfigError(f"a mix is written TIER=SHARE,..., not {spelling!r}")
        senders.append(Sender(key.replace("{tier}", tier), tier, _parse_number(share, f"the share in {part!r}")))
    if len({sender.tier for sender in senders}) < len(senders):
        raise ConfigError(f"a tier is named twice in the mix {spelling!r}")
    return Mix(tuple(senders))


def parse_senders(spellings: list[str]) -> Mix:
    """The mix of keys that are each written `KEY:TIER:RATE`; its `total` is their rate. Raises `ConfigError`."""
    senders = []
    for spelling in spellings:
        key, tier, rate = ["", "", *spelling.rsplit(":", 2)][-3:]
        if not key or not tier:
            raise ConfigError(f"a key is written KEY:TIER:RATE, not {spelling!r}")
        senders.append(Sender(key, tier, _parse_number(rate, f"the rate in {spelling!r}")))
    return Mix(tuple(senders))


def _parse_number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{what} must be a number, not {text!r}") from None
