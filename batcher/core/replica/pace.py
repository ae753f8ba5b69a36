"""How many prompt tokens may ride along with decodes, learned from how long steps take.

A prompt is cut into chunks so that decoding sequences slow a little and never stall (SPEC S6.3), and how large a chunk is still
"a little" depends on the machine: 512 tokens take a GPU as long as one decode or two, and a CPU as long as ten. One size for
all was refused for that, and a size for each kind of device too, since a token costs more the longer its context is. So the
step is held to `prefill_stretch` times what its decodes alone take, whatever that is here and now; where nothing decodes
nobody waits, and a chunk is as large as it may be.

That is for the few prompts that ride along with many streams. Where many prompts could start and few streams run, as in a
burst, holding to it would leave slots empty for the sake of a few: there a step may take longer, in the proportion of those
who wait to those who are held up.

A step with a chunk costs something whatever the chunk's size: a GPU replays a recorded pass for decodes alone and must launch
all others kernel by kernel, which can take twice as long. Smaller chunks do not help against that, they only pay it more
often: so a chunk's tokens may take as long as what it costs anyway, though the stretch is broken by it.

What decodes alone take is the median of recent steps without prompt tokens, by number of sequences in powers of two. Where none
of that size has been seen, it is taken from the nearest smaller one and what a prompt token costs, for a decode costs at least
as much: in a burst of prompts a step without any may not come for long.
"""

import statistics
from collections import deque

from batcher.config import ReplicaConfig
from batcher.types import BLOCK_SIZE

_FIRST_CHUNK = 2 * BLOCK_SIZE
"""Beside decodes, until a step has told what a prompt token costs: on a GPU a few steps from the largest, on a CPU no stall."""
_MIN_CHUNK = BLOCK_SIZE
"""A prompt gets on whatever a step took."""
_NUM_SAMPLES = 9
"""Recent steps of each size: enough that a pause of the machine does not count, few enough to follow it."""
_MAX_CHANGE = 2.0
"""By which factor one step may change the cost of a token: one that was disturbed must not be believed whole."""
_WAITER_WEIGHT = 4.0
"""Streams that one who waits for a first token is worth: those get their next one a little later, it gets none at all."""
_TELLING_SHARE = 0.5
"""Steps with a smaller part of the chunk tell little of a token's cost, unless they took longer than the whole chunk may."""


class PrefillPace:
    """`_alone_s` has the last durations of steps with nothing but decodes, by the bit length of their number; `_token_s` what a
    prompt token adds to a step, once known, and `_fixed_s` what any chunk adds, the median of `_fixed_samples_s`. `_large`
    is a recent chunk that others are compared with, in tokens, what it added to its step, and how many were compared."""

    __slots__ = ("_alone_s", "_fixed_s", "_fixed_samples_s", "_large", "_max_chunk", "_medians_s", "_stretch", "_token_s")

    def __init__(self, config: ReplicaConfig) -> None:
        self._max_chunk = config.prefill_chunk or config.max_model_len
        self._stretch = config.prefill_stretch if config.prefill_chunk else 0.0
        self._alone_s: dict[int, deque[float]] = {}
        self._medians_s: dict[int, float] = {}
        self._token_s: float | None = None
        self._fixed_s = 0.0
        self._fixed_samples_s = deque([0.0] * 3, maxlen=_NUM_SAMPLES)  # Some pauses at first are not believed.
        self._large = (0, 0.0, 0)

    def budget(self, num_decodes: int, num_starting: int = 0) -> int:
        """Prompt tokens that the next step may compute beside so many decodes, for the sake of so many prompts."""
        if not num_decodes or not self._stretch:
            return self._max_chunk
        alone_s = self._estimate_alone_s(num_decodes)
        if alone_s is None:
            return self._max_chunk  # Nobody has decoded alone yet: there is no stall to speak of.
        if self._token_s is None:
            return min(_FIRST_CHUNK, self._max_chunk)
        weight = max(1.0, _WAITER_WEIGHT * num_starting / num_decodes)
        chunk = (weight * self._allowed_s(alone_s) - self._fixed_s) / self._token_s
        return int(min(self._max_chunk, max(_MIN_CHUNK, chunk)))

    def observe(self, *, num_decodes: int, num_prefill_tokens: int, duration_s: float) -> None:
        """A step has taken so long. Durations of 0 or less tell nothing."""
        if not self._stretch or not num_decodes or duration_s <= 0.0:
            return
        if not num_prefill_tokens:
            size = num_decodes.bit_length()
            samples = self._alone_s.setdefault(size, deque(maxlen=_NUM_SAMPLES))
            samples.append(duration_s)
            self._medians_s[size] = float(statistics.median(samples))
            return
        alone_s = self._estimate_alone_s(num_decodes)
        if alone_s is None:
            return
        # Never free: a step that was shorter than its decodes alone would tell that, and allow any chunk.
        least_s = 0.01 * alone_s
        added_s = max(duration_s - alone_s, least_s)
        is_small = num_prefill_tokens < _TELLING_SHARE * self.budget(num_decodes)
        is_untold = is_small and added_s <= self._allowed_s(alone_s)
        self._observe_fixed(num_prefill_tokens, added_s)
        if is_untold:
            return
        token_s = max(added_s - self._fixed_s, least_s) / num_prefill_tokens
        if self._token_s is not None:
            token_s = min(max(token_s, self._token_s / _MAX_CHANGE), self._token_s * _MAX_CHANGE)
        self._token_s = token_s

    def _allowed_s(self, alone_s: float) -> float:
        """What a chunk may add to a step."""
        return max((self._stretch - 1.0) * alone_s, 2.0 * self._fixed_s)

    def _observe_fixed(self, num: int, added_s: float) -> None:
        """Of two chunks, one at most half as large as the other, the smaller tells what is left where there are no tokens."""
        num_large, large_s, num_compared = self._large
        if num_large >= 2 * num and num_compared < _NUM_SAMPLES:
            self._large = num_large, large_s, num_compared + 1
            token_s = max(0.0, large_s - added_s) / (num_large - num)
            sample_s = max(0.0, added_s - num * token_s)
        else:
            self._large = num, added_s, 0
            sample_s = added_s
            if sample_s >= self._fixed_s:
                return  # It tells that the fixed part is no more than that, which was known.
        self._fixed_samples_s.append(sample_s)
        self._fixed_s = statistics.median_low(self._fixed_samples_s)

    def _estimate_alone_s(self, num_decodes: int) -> float | None:
        size = num_decodes.bit_length()
        if (known_s := self._medians_s.get(size)) is not None:
            return known_s
        smaller = [known for known in self._medians_s if known < size]
        if smaller:
            nearest: int = max(smaller)
            num_more = num_decodes - (1 << nearest)
            return self._medians_s[nearest] + num_more * (self._token_s or 0.0)
        if not self._medians_s:
            return None
        return self._medians_s[min(self._medians_s)]
