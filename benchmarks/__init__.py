"""Measurements that people run by hand: `python -m benchmarks.NAME` from the repository's root. No test times anything."""
