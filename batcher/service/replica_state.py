"""What a replica can be in: for whoever asks whether it can serve."""

from enum import StrEnum


class ReplicaState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    """The backend was lost and another one is being started."""
    ENDED = "ended"
    """Closed, or failed for good."""
