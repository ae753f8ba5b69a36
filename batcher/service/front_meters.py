"""What is counted of every request of the computing routes, whatever the mode: as its caller saw it, from headers to end.

The meters of the two modes (`meters.py`, `generation_meters.py`) see a request only once it was let in, and measure what the
machines do. These see the refused ones too, and what the stages before and after the machines cost. Labels are closed sets made
at birth: a route, tier or model that is not in them counts as one and the same other (CASES B91).
"""

from collections.abc import Iterable

from batcher.service.meters import Histogram
from batcher.service.records import INVALID, OTHER, Refused, RequestLine, Route
from batcher.types import Outcome

FRONT_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.75, 0.9, 1.0),
    *(1.25, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
"""From a millisecond to an answer's minutes, close around what is promised: 500 ms in batch mode, 1 s to the first token."""
NO_TIER = "none"
"""In place of the tier of a caller without a key."""
OUTCOMES = (*Outcome, INVALID)
ROUTES = (*Route, OTHER)
STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


class AnswerMeters:
    """The answers of one tier by one model."""

    __slots__ = ("e2e_s", "input_tokens", "output_tokens", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s = Histogram(FRONT_BOUNDS_S)
        """From the headers to the first text. Whole answers only, as the next: a quick refusal must not look like a quick
        answer, nor one that broke off like a whole one (CASES B95)."""
        self.e2e_s = Histogram(FRONT_BOUNDS_S)
        self.input_tokens = 0
        """Delivered and billed, whole answer or not; so the next. Of `POST /v1/run`, bytes."""
        self.output_tokens = 0


class _Cell:
    """Where one route, tier and model is counted. Several cells share what is not told apart by all three."""

    __slots__ = ("answers", "outcomes", "refusals", "statuses")

    def __init__(self, statuses: list[int], refusals: dict[str, int], answers: AnswerMeters | None) -> None:
        self.outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.statuses = statuses
        """Replies by the first digit of their status; `statuses[0]` stays empty."""
        self.refusals = refusals
        self.answers = answers
        """None where there are no answers: without a tier or a model."""


class FrontMeters:
    """Belongs to one event loop; reading from elsewhere is safe and may be a request behind. All cells are made at birth."""

    def __init__(self, tiers: Iterable[str], models: Iterable[str]) -> None:
        """`models` are the ids that callers may name; `POST /v1/run` has one too."""
        models = tuple(dict.fromkeys(models))
        tiers = tuple(tiers)
        self.statuses = {route: [0] * (1 + len(STATUSES)) for route in ROUTES}
        self.refusals: dict[str, dict[str, int]] = {tier: dict.fromkeys(Refused, 0) for tier in (*tiers, NO_TIER)}
        self.answers = {(tier, model): AnswerMeters() for tier in tiers for model in models}
        self.num_open_streams = 0
        """Whoever streams counts it up and down."""
        kinds = [(tier, model) for tier in tiers for model in (*models, OTHER)] + [(NO_TIER, OTHER)]
        self._cells = {
            (route, tier, model): _Cell(self.statuses[route], self.refusals[tier], self.answers.get((tier, model)))
            for route in ROUTES
            for tier, model in kinds
        }

    @property
    def outcomes(self) -> Iterable[tuple[tuple[str, str, str], dict[str, int]]]:
        """((route, tier, model), requests by outcome), of each that there can be."""
        return [(names, cell.outcomes) for names, cell in self._cells.items()]

    def observe(self, line: RequestLine) -> None:
        """A request has ended."""
        cell = self._cells.get((line.route, line.tier, line.model)) or self._other(line)
        outcome = line.outcome
        cell.outcomes[outcome] += 1
        cell.statuses[line.status // 100] += 1
        if line.refused:
            cell.refusals[line.refused] += 1
        answers = cell.answers
        if answers is not None and not line.is_replayed:
            answers.input_tokens += line.input_tokens
            answers.output_tokens += line.output_tokens
            if outcome == "ok":
                answers.e2e_s.observe(line.e2e_s)
                if line.ttft_s is not None:
                    answers.ttft_s.observe(line.ttft_s)

    def _other(self, line: RequestLine) -> _Cell:
        """The cell of a line that names something that there is none of; never a new one."""
        route = line.route if line.route in self.statuses else OTHER
        tier = line.tier if line.tier in self.refusals else NO_TIER
        model = line.model if (tier, line.model) in self.answers else OTHER
        return self._cells[route, tier, model]
