"""What a scheduler counts while it works."""

import msgspec


class Counters(msgspec.Struct):
    """Totals since birth. The scheduler counts, nobody resets."""

    num_steps: int = 0
    num_prefill_tokens: int = 0
    """Tokens computed before a sequence could decode: prompts, and what was preempted anew. Hits are not among them."""
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    """Tokens that a start found in the prefix cache."""
    num_finished: int = 0
    """Sequences that ended by a stop token or `max_tokens`."""
    num_stopped: int = 0
    """Sequences that the shell ended: a stop string."""
    num_cancelled: int = 0
    num_expired: int = 0
    num_failed: int = 0
    num_refused: int = 0
    """Sequences refused at submission, for whatever reason."""
    num_displaced: int = 0
    """Waiting sequences that gave their room to another."""
    num_preemptions: int = 0
    num_overtakes: int = 0
    """Starts before one that did not fit."""
    num_late_tokens: int = 0
    """Tokens that came for a sequence that had ended, and were dropped."""
