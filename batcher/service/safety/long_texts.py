"""Long texts, looked through by the rules without holding up the event loop.

Phrases are looked for in pieces, one a turn: what they take is the interpreter's time, and threads that take it keep the loop
waiting whenever it has let go of it for a moment. Regular expressions want a text whole, and may take long over it; RE2 lets go
of the interpreter, so that a thread of their own does them. There is no time limit: what a rule takes grows with the text
alone, a millisecond for 100,000 characters as a rule, and a quarter of a second by the worst pattern.
"""

from collections import Counter
from collections.abc import Sequence

from batcher.service.safety.contract import Checked
from batcher.service.safety.expressions import ExpressionSet
from batcher.service.safety.phrases import Match, PhraseScanner
from batcher.service.safety.rulebook import AnswerScan, RuleSet
from batcher.service.threads import MAX_WAITING, Busy, Threads
from batcher.service.turns import Turns

PIECE_CHARS = 8_000
"""Of a turn: 50 microseconds as a rule, a millisecond of indented code, eight where every other word is behind two spaces."""


class LongTexts:
    """Lives on one event loop. Whose text it is says whose turns it takes."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        # One: several would only wait for each other's cache of states.
        self._thread = Threads("safety-rules", num_threads=1)
        self._num_waiting: Counter[str] = Counter()
        """For the thread, by tenant, of inputs."""

    async def first_in(self, rules: RuleSet, texts: Sequence[str], *, tenant: str) -> Match | None:
        """Of texts that are whole: in the first that has any. Raises Busy if too many of the tenant's wait for the thread."""
        found: list[tuple[int, Match]] = []
        num_left = 0
        for number, text in enumerate(texts):
            scanners = rules.phrase_scanners()
            for begin in range(0, len(text) if scanners else 0, PIECE_CHARS):
                piece = text[begin : begin + PIECE_CHARS]
                if num_left < len(piece):  # Short texts share a turn.
                    await self._turns.take(tenant, goes_on=number + begin > 0)
                    num_left = PIECE_CHARS
                num_left -= len(piece)
                if (match := _first(scanners, piece)) is not None:
                    found.append((number, match))
                    break
            if found:
                break
        if rules.expressions is not None:
            suspects = texts[: found[0][0] + 1] if found else texts
            if (first := await self._search(rules.expressions, suspects, tenant)) is not None:
                found.append(first)
        return min(found)[1] if found else None

    async def _search(self, expressions: ExpressionSet, texts: Sequence[str], tenant: str) -> tuple[int, Match] | None:
        """As the queues' room is, places to wait are shared: a tenant has no more of them than are still free."""
        if self._num_waiting[tenant] >= MAX_WAITING - self._num_waiting.total():
            raise Busy
        self._num_waiting[tenant] += 1
        try:
            found: tuple[int, Match] | None = await self._thread.call(_first_of, expressions, texts, is_bounded=False)
        finally:
            self._num_waiting -= Counter((tenant,))  # Without those that have none left.
        return found

    async def feed(self, scan: AnswerScan, text: str, *, tenant: str) -> Checked:
        """What `scan.feed` returns. There are no more of these than answers under way, and so it is never busy."""
        found: list[Match | None] = []
        for begin in range(0, len(text) if scan.phrases else 0, PIECE_CHARS):
            await self._turns.take(tenant, goes_on=begin > 0)
            found = [_first(scan.phrases, text[begin : begin + PIECE_CHARS])]
            if found[0] is not None:
                break  # What comes behind it is complete later.
        if (expressions := scan.expressions) is not None:
            found.append(await self._thread.call(lambda: expressions.feed(text, is_last=False), is_bounded=False))
        return scan.take_in(text, found)

    def close(self) -> None:
        self._thread.close()


def _first(scanners: Sequence[PhraseScanner], piece: str) -> Match | None:
    found = [scanner.feed(piece, is_last=False) for scanner in scanners]
    return min((match for match in found if match is not None), default=None)


def _first_of(expressions: ExpressionSet, texts: Sequence[str]) -> tuple[int, Match] | None:
    for number, text in enumerate(texts):
        if (match := expressions.first_in(text)) is not None:
            return number, match
    return None
