"""The dashboard and the alerts ask for nothing that the service does not tell, and leave out nothing that it does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import generate_latest
from prometheus_client.core import Metric

from batcher.service.claims import RedisClaimsStatistics
from batcher.service.exposition import create_registry
from batcher.service.idempotency_metrics import claims_metrics
from batcher.service.limits import RedisLimitsStatistics
from batcher.service.limits_metrics import limit_store_metrics
from tests.service.scraping import Metrics
from tests.service.serving import generating, quick, serving, simulated

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "dashboards" / "batcher.json"
ALERTS = ROOT / "dashboards" / "alerts.yml"

RULES = """
[[rules]]
name = "forbidden"
phrases = ["forbidden"]
"""

_NAME = re.compile(r"\bbatcher_[a-z0-9_]+")
_SELECTOR = re.compile(r"\b(batcher_[a-z0-9_]+)\{([^}]*)\}")
_MATCHER = re.compile(r"([a-z_]+)(?:=~|!~|!=|=)\"")
_VALUES = re.compile(r"([a-z_]+)=~?\"([^\"$]+)\"")
_BY = re.compile(r"\bby \(([^)]*)\)")
OF_PROMETHEUS = {"instance", "job", "le"}


class Told:
    """All that /metrics tells, in either mode and with every stage there: names of samples, and their labels."""

    def __init__(self, *pages: bytes) -> None:
        self.labels: dict[str, set[str]] = {}
        self.values: dict[tuple[str, str], set[str]] = {}
        """Of each name and label."""
        self.families: dict[str, set[str]] = {}
        """Names of the samples of each, with the suffixes of counters and histograms."""
        for page in pages:
            for family in Metrics(page.decode()).families.values():
                for sample in family.samples:
                    self.labels.setdefault(sample.name, set()).update(sample.labels)
                    self.families.setdefault(family.name, set()).add(sample.name)
                    for label, value in sample.labels.items():
                        self.values.setdefault((sample.name, label), set()).add(value)


@pytest.fixture
async def told(tmp_path: Path) -> Told:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    front: dict[str, Any] = {"safety_rules": rules, "usage_dir": tmp_path / "usage"}
    async with serving(quick(**front)) as server:
        batch = generate_latest(server.service.registry)
    async with generating(simulated(**front)) as replica:
        continuous = generate_latest(replica.service.registry)
    return Told(batch, continuous, generate_latest(create_registry(_redis)))


def _redis() -> Iterator[Metric]:
    """What a gateway tells of Redis; for its names there need not be one."""
    fields = RedisLimitsStatistics.__struct_fields__
    yield from claims_metrics(RedisClaimsStatistics(is_failing=False, num_too_large=0))
    yield from limit_store_metrics(RedisLimitsStatistics(**dict.fromkeys(fields, 0)))  # type: ignore[arg-type]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return board


def queries() -> dict[str, str]:
    """Every expression of the dashboard, by where it stands."""
    board = dashboard()
    found: dict[str, str] = {f"{p['title']} {t['refId']}": t["expr"] for p in board["panels"] for t in p.get("targets", [])}
    variables = {f"variable {v['name']}": v["definition"] for v in board["templating"]["list"] if v["type"] == "query"}
    return {**found, **variables}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    alerts = {str(rule.get("alert", rule.get("record"))): str(rule["expr"]) for rule in rules()}
    return {**queries(), **alerts}


async def test_whatever_is_asked_for_is_told(told: Told) -> None:
    asked = {(where, name) for where, expr in expressions().items() for name in _NAME.findall(expr)}
    assert len(asked) > 100
    assert {(where, name) for where, name in asked if name not in told.labels} == set()


def test_the_page_beside_it_explains_each_variable() -> None:
    page = (ROOT / "dashboards" / "README.md").read_text()
    explained = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert explained == [variable["name"] for variable in dashboard()["templating"]["list"]]


async def test_labels_that_are_asked_for_are_there(told: Told) -> None:
    for where, expr in expressions().items():
        for name, matchers in _SELECTOR.findall(expr):
            assert set(_MATCHER.findall(matchers)) <= told.labels[name] | OF_PROMETHEUS, where
        labels = set().union(*(told.labels[name] for name in _NAME.findall(expr)))
        for by in _BY.findall(expr):
            assert {label.strip() for label in by.split(",")} <= labels | OF_PROMETHEUS, where


async def test_values_that_are_asked_for_may_occur(told: Told) -> None:
    """Of closed sets all are there from the beginning: one that is not would never be found, and an alert on it stay silent."""
    asked = {
        (name, label, value)
        for expr in expressions().values()
        for name, matchers in _SELECTOR.findall(expr)
        for label, values in _VALUES.findall(matchers)
        for value in values.split("|")
    }
    assert len(asked) > 10
    assert {(name, label, value) for name, label, value in asked if value not in told.values.get((name, label), ())} == set()


async def test_whatever_is_told_is_on_the_dashboard(told: Told) -> None:
    shown = {name for expr in queries().values() for name in _NAME.findall(expr)}
    assert {family for family, samples in told.families.items() if not samples & shown} == set()


async def test_a_counter_is_never_drawn_as_it_stands() -> None:
    """Its height says nothing but how long the process has run."""
    for where, expr in expressions().items():
        for total in re.finditer(r"\bbatcher_[a-z0-9_]+_(?:total|bucket|sum|count)\b(?:\{[^}]*\})?(.)?", expr):
            if "torn_segments" not in total[0] and not where.startswith("variable"):
                assert total[1] == "[", (where, total[0])


def test_the_dashboard_is_whole() -> None:
    board = dashboard()
    panels = board["panels"]
    assert board["schemaVersion"] >= 39
    assert board["templating"]["list"][0]["type"] == "datasource"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = {name for expr in queries().values() for name in re.findall(r"\$([a-z_]+)", expr)}
    assert used - {"__rate_interval"} == variables - {"datasource"}
    assert json.dumps(board).count('"uid": "${datasource}"') == json.dumps(board).count('"type": "prometheus"')
    # Nothing lies upon another panel, and nothing outside.
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_each_expression_is_closed() -> None:
    for where, expr in expressions().items():
        for opening, closing in ("()", "{}", "[]"):
            assert expr.count(opening) == expr.count(closing) > 0 or opening not in expr, where


def test_each_alert_says_how_bad_it_is_and_what_to_look_at() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) >= 8
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["description"]
