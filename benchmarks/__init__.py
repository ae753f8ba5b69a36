"""Measurements that people run by hand: `python -m benchmarks.NAME` from the repository's root. No test times anything."""

import backends.llm  # noqa: F401  Before torch, whose threads it tells how long to spin.
