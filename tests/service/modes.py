"""A server of each mode, for what no mode may do otherwise than the others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.service.serving import Served, generating, quick, serving, simulated

MODES = ["continuous", "generate", "text"]

OVERHEAD = {"continuous": 3, "generate": 3, "text": 0}
"""Tokens of a prompt with one message beside its bytes: the turn's begin and end, and the begin of the answer."""

_GENERATE = {"backend": "generate", "model": "simulated", "simulated_time_scale": 0.0, "workers": 1}


@asynccontextmanager
async def served(mode: str, **settings: Any) -> AsyncIterator[Served]:
    """A server in continuous mode, or in batch mode with a backend that knows conversations, or only text. All echo."""
    if mode == "continuous":
        async with generating(simulated(**settings)) as continuous:
            yield continuous
    else:
        async with serving(quick(**(_GENERATE if mode == "generate" else {}), **settings)) as batch:
            yield batch
