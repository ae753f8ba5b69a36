"""What the front door has counted, for `GET /metrics`: the same in both modes. Every label is from a closed set (DESIGN D7)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.exposition import counters, counts, gauges, histograms
from batcher.service.front_meters import STATUSES, FrontMeters
from batcher.service.keys_file import KeysStatistics
from batcher.service.line_writer import LinesStatistics
from batcher.service.pending_bodies import PendingBodies
from batcher.service.turns import Turns


def front_metrics(meters: FrontMeters) -> Iterator[Metric]:
    yield counts(
        "http_requests",
        "Ended requests of the computing routes, refused ones too, as their callers saw them.",
        ["route", "tier", "model", "outcome"],
        (((*names, outcome), num) for names, outcomes in meters.outcomes for outcome, num in outcomes.items()),
    )
    yield counts(
        "http_replies",
        "Their replies by class of status; who left before one counts as 4xx.",
        ["route", "status"],
        (
            ((route, status), num)
            for route, nums in meters.statuses.items()
            for status, num in zip(STATUSES, nums[1:], strict=True)
        ),
    )
    yield counts(
        "refusals",
        "Requests that were refused, by what stood in their way.",
        ["tier", "kind"],
        (((tier, kind), num) for tier, kinds in meters.refusals.items() for kind, num in kinds.items()),
    )
    answers = meters.answers.items()
    labels = ["tier", "model"]
    yield histograms(
        "http_ttft_seconds", "From headers to the first text, of whole answers.", labels, ((n, a.ttft_s) for n, a in answers)
    )
    yield histograms("http_e2e_seconds", "From headers to end, of whole answers.", labels, ((n, a.e2e_s) for n, a in answers))
    yield counts(
        "http_input_tokens",
        "Tokens of prompts, as billed; bytes of /v1/run.",
        labels,
        ((n, a.input_tokens) for n, a in answers),
    )
    yield counts(
        "http_output_tokens",
        "Tokens delivered, as billed; bytes of /v1/run.",
        labels,
        ((n, a.output_tokens) for n, a in answers),
    )
    yield from gauges(("open_streams", "Streams that are being sent.", meters.num_open_streams))


def body_metrics(bodies: PendingBodies, turns: Turns) -> Iterator[Metric]:
    yield from gauges(("pending_body_bytes", "Of large bodies that are being received, or held by a call.", bodies.num_bytes))
    yield from gauges(("waiting_turns", "Large bodies and long texts that wait for their turn.", turns.num_waiting))


def lines_metrics(name: str, lines: LinesStatistics) -> Iterator[Metric]:
    """`name` is the log's."""
    yield from gauges((f"{name}_waiting_lines", "Lines of this log that wait to be written.", lines.num_waiting))
    yield from counters(
        (f"{name}_written_lines", "Lines of this log that were written.", lines.num_written),
        (f"{name}_dropped_lines", "Lines that there was no room for: whoever reads them is slow.", lines.num_dropped),
        (f"{name}_failed_lines", "Lines that could not be written.", lines.num_failed),
    )


def keys_metrics(keys: KeysStatistics) -> Iterator[Metric]:
    yield from gauges(
        ("keys", "Keys that open something; 0 with the development keys.", keys.num_keys),
        ("keys_file_refused", "1 while the keys in force are not those of the file, which cannot be read.", keys.is_refused),
    )
    yield from counters(
        ("key_reloads", "Times that the keys file was read again.", keys.num_reloads),
        ("key_reloads_refused", "Times that it could not be, for each reason once.", keys.num_refused_reloads),
    )
