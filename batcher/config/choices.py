"""The settings that are one of a few words."""

from enum import StrEnum


class PolicyName(StrEnum):
    PACED = "paced"
    SIZE_OR_TIMEOUT = "size-or-timeout"
    STATIC = "static"
    SINGLE = "single"


class ReplicaPolicy(StrEnum):
    """How a replica forms its batch (SPEC S11)."""

    CONTINUOUS = "continuous"
    """The batch is formed anew at each step."""
    STATIC = "static"
    """A batch is formed when the last one has ended, and runs until its longest sequence ends."""
    SINGLE = "single"
    """One sequence at a time."""


class KvMode(StrEnum):
    PAGED = "paged"
    """Blocks are handed out as tokens come."""
    CONTIGUOUS = "contiguous"
    """A sequence reserves prompt + max_tokens when it starts, and shares nothing."""


class Isolation(StrEnum):
    INLINE = "inline"
    PROCESS = "process"


class Mode(StrEnum):
    BATCH = "batch"
    """A GPU is a call of `run_batch` (SPEC S1)."""
    CONTINUOUS = "continuous"
    """A GPU is a model, run step by step (SPEC S6)."""


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


class TokenEstimate(StrEnum):
    """What a request is charged for its answer when it is admitted; the end settles the difference."""

    MAX_TOKENS = "max_tokens"
    """All that it allows for: the limit is never exceeded."""
    EXPECTED = "expected"
    """What answers to this key by this model have had of late, at most max_tokens: more fits, and a minute with longer answers
    than expected may exceed the limit by the difference."""
    EXACT = "exact"
    """Nothing before the end, and then exactly what was made, however long that took: a minute may exceed the limit by the
    answers under way."""


class LimitMode(StrEnum):
    """How several gateways share one limit."""

    SHARED = "shared"
    """Each admission is one atomic step in the store."""
    LEASE = "lease"
    """A gateway takes a slice of a key's limit at a time and admits from it without asking."""


class OnFailure(StrEnum):
    """What becomes of requests while something beside the model is broken."""

    OPEN = "open"
    """They go on without it."""
    CLOSED = "closed"
    """They are refused."""
