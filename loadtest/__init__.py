"""The load test asks from outside: open-loop traffic, honest latency, and a verdict on itself.

`loadtest run` offers a schedule that is drawn up front, `sweep` looks for the highest rate that meets an SLO, `scenario`
measures batcher against its bars, and `report` draws a saved run again. `loadtest/report.py` documents report.json.
"""
