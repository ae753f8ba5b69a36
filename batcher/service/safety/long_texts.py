"""Long texts, looked through by the rules without holding up the event loop.

Phrases are looked for in pieces, one a turn: what they take is the interpreter's time, and threads that take it keep the loop
waiting whenever it has let go of it for a moment. Regular expressions want a text whole, and may take long over it; RE2 lets go
of the interpreter, so that a thread of their own does them. There is no time limit: what rules take grows with the text alone.
"""

from collections.abc import Sequence

from batcher.service.safety.contract import Checked
from batcher.service.safety.phrases import Match, PhraseScanner
from batcher.service.safety.rulebook import AnswerScan, RuleSet
from batcher.service.threads import Threads
from batcher.service.turns import Turns

PIECE_CHARS = 20_000
"""Of a turn: a tenth of a millisecond."""


class LongTexts:
    """Lives on one event loop. Whose text it is says whose turns it takes."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        # One: several would only wait for each other's cache of states.
        self._thread = Threads("safety-rules", num_threads=1)

    async def first_in(self, rules: RuleSet, text: str, *, tenant: str) -> Match | None:
        """In a text that is whole. Raises Busy if too many wait for the thread."""
        found = await self._feed_phrases(rules.phrase_scanners(), text, tenant, is_last=True)
        if rules.expressions is not None:
            found.append(await self._thread.call(rules.expressions.first_in, text))
        return min((match for match in found if match is not None), default=None)

    async def feed(self, scan: AnswerScan, text: str, *, tenant: str) -> Checked:
        """What `scan.feed` returns. There are no more of these than answers under way, and so it is never busy."""
        found = await self._feed_phrases(scan.phrases, text, tenant, is_last=False)
        if (expressions := scan.expressions) is not None:
            found.append(await self._thread.call(lambda: expressions.feed(text, is_last=False), is_bounded=False))
        return scan.take_in(text, found)

    async def _feed_phrases(
        self, scanners: Sequence[PhraseScanner], text: str, tenant: str, *, is_last: bool
    ) -> list[Match | None]:
        """As far as to the piece of the first match: what comes behind it is complete later."""
        found: list[Match | None] = []
        for begin in range(0, len(text) if scanners else 0, PIECE_CHARS):
            await self._turns.take(tenant)
            end = begin + PIECE_CHARS
            found = [scanner.feed(text[begin:end], is_last=is_last and end >= len(text)) for scanner in scanners]
            if any(match is not None for match in found):
                break
        return found

    def close(self) -> None:
        self._thread.close()
