"""What a run came to, in words: one meaning of refused and of error for the terminal, the page and the comparison.

Refused is by a server that is busy and says so (429, 503, 529). An error is every other answer that is not good, and none at
all: something that a caller would call broken. The verdict tells of the generator alone, so what the server did stands beside
it in words: a run against a wrong path is VALID, and nobody may read that as a good one.
"""

from loadtest.measures import Measures
from loadtest.report import Report
from loadtest.samples import NOT_ERRORS, REJECTIONS, Ending

_REFUSED = frozenset(ending.name.lower() for ending in REJECTIONS)
_NO_ERRORS = frozenset(ending.name.lower() for ending in NOT_ERRORS)

_OTHER_PATH = "the server has nothing of that name: are --path and --endpoint (run, messages) right, and --model?"
_OTHER_KEY = "the server does not accept the key: say --key KEY:TIER:RATE, or --header"
_OTHER_BODY = "the server does not take such requests: --endpoint, --body, --model and the lengths decide what is asked"
_OTHER_URL = "the server points elsewhere: say the URL that it points to"
_HINTS = {
    "301": _OTHER_URL, "302": _OTHER_URL, "307": _OTHER_URL, "308": _OTHER_URL,
    "400": _OTHER_BODY, "401": _OTHER_KEY, "403": _OTHER_KEY, "404": _OTHER_PATH, "405": _OTHER_PATH,
    "413": _OTHER_BODY, "415": _OTHER_BODY, "422": _OTHER_BODY,
}  # fmt: skip


def count_refused(measures: Measures) -> int:
    return sum(num for name, num in measures.outcomes.items() if name in _REFUSED)


def count_errors(measures: Measures) -> int:
    return sum(num for name, num in measures.outcomes.items() if name not in _NO_ERRORS)


def describe_success(report: Report) -> str:
    """What must stand beside the verdict; empty where nothing must."""
    if not report.outcomes["ok"]:
        return "no good answer"
    return "most requests failed" if count_errors(report) > report.sent / 2 else ""


def describe_outcomes(report: Report) -> str:
    """Such as `ok 650 · refused 300 · errors 50 (failed 50)`."""
    words = [f"ok {report.outcomes['ok']:,}"]
    if num_refused := count_refused(report):
        words.append(f"refused {num_refused:,}")
    if num_errors := count_errors(report):
        kinds = ", ".join(f"{_say(name)} {num:,}" for name, num in report.outcomes.items() if name not in _NO_ERRORS)
        words.append(f"errors {num_errors:,} ({kinds})")
    others = _NO_ERRORS - _REFUSED - {"ok"}
    words += [f"{_say(name)} {num:,}" for name, num in report.outcomes.items() if name in others]
    return " · ".join(words)


def describe_statuses(report: Report) -> str:
    return " · ".join(f"{status}: {num:,}" for status, num in report.statuses.items()) or "none"


def hints(report: Report) -> list[str]:
    """What to try when most requests failed in one way."""
    most = report.sent / 2
    found = []
    if report.mismatched > most:
        found.append("most answers differ from their questions: where the server does not echo, say --check contains or none")
    found += [
        f"most answers are {status}: {_HINTS[status]}"
        for status, num in report.statuses.items()
        if status in _HINTS and num > most
    ]
    if report.outcomes.get(Ending.TIMEOUT.name.lower(), 0) > most:
        found.append("most answers did not come in time: ask for less at once, or say a longer --timeout")
    if report.outcomes.get(Ending.TRANSPORT.name.lower(), 0) > most:
        found.append("most connections could not be made, or died: the server's log may say why; is it http or https?")
    return found


def _say(name: str) -> str:
    return name.replace("_", " ")
