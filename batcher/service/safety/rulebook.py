"""Rules at work: on whole texts, and on an answer that comes in pieces.

The rules that apply to a model and a tier are compiled together once, at start, so that a text is looked through by one search
for all phrases and one for all regular expressions, a microsecond or so each.
"""

from collections.abc import Iterable

import msgspec

from batcher.service.safety.contract import CheckContext, Checked, Finding, Verdict
from batcher.service.safety.expressions import Detector, Expression, ExpressionScanner, ExpressionSet, compile_phrases
from batcher.service.safety.phrases import Match, PhraseAutomaton, PhraseScanner, fold
from batcher.service.safety.rules import Rule
from batcher.service.safety.spaces import spaced_loosely, spaced_once


class RuleSet:
    """Some rules, compiled. Read-only after birth."""

    def __init__(self, rules: tuple[Rule, ...], indexes: tuple[int, ...]) -> None:
        self._rules = rules
        phrases = [(spaced_once(phrase), index) for index in indexes for phrase in rules[index].phrases]
        folded = [(fold(phrase), index) for phrase, index in phrases if rules[index].ignore_case]
        exact = [(phrase, index) for phrase, index in phrases if not rules[index].ignore_case]
        # Folded text has every exact phrase, folded, wherever the text has it: one search rules out all of them.
        any_phrase = compile_phrases(sorted({fold(phrase) for phrase, _ in phrases})) if phrases else None
        self._has_phrase = None if any_phrase is None else Detector(any_phrase).finds
        self._automata = [
            (PhraseAutomaton(some, compile_phrases([phrase for phrase, _ in some])), ignores_case)
            for some, ignores_case in ((folded, True), (exact, False))
            if some
        ]
        expressions = [
            Expression(rule.expression(), index, rule.max_length, rule.ignore_case)
            for index in indexes
            if (rule := rules[index]).regex is not None
        ]
        self.expressions = ExpressionSet(expressions) if expressions else None

    def first_in(self, text: str) -> Match | None:
        """In a text that is whole."""
        found = []
        if self._has_phrase is not None and self._has_phrase(spaced_loosely(fold(text))):
            found += [scanner.feed(text, is_last=True) for scanner in self.phrase_scanners()]
        if self.expressions is not None and (first := self.expressions.first_in(text)) is not None:
            found.append(first)
        return min((match for match in found if match is not None), default=None) if found else None

    def phrase_scanners(self) -> list[PhraseScanner]:
        """For one text."""
        return [PhraseScanner(automaton, ignores_case=ignores_case) for automaton, ignores_case in self._automata]

    def finding(self, match: Match) -> Finding:
        rule = self._rules[match.rule]
        return Finding(rule.verdict, rule.name, rule.message)

    def refusal(self, match: Match) -> Finding:
        """The finding in an input, of which there is nothing to be stopped."""
        rule = self._rules[match.rule]
        return Finding(Verdict.REFUSE, rule.name, rule.message)


class AnswerScan:
    """An OutputCheck by rules. It gives back what can be part of nothing forbidden, and before a finding all that stands before
    the match that was complete first, in whatever pieces the text came."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self.phrases = rules.phrase_scanners()
        self.expressions = None if rules.expressions is None else ExpressionScanner(rules.expressions)
        self._scanners: list[PhraseScanner | ExpressionScanner] = [*self.phrases]
        if self.expressions is not None:
            self._scanners.append(self.expressions)
        self.held = ""
        """What was fed and has not been given back."""
        self._num_released = 0

    def feed(self, text: str) -> Checked:
        return self.take_in(text, [scanner.feed(text, is_last=False) for scanner in self._scanners])

    def flush(self) -> Checked:
        found = [scanner.feed("", is_last=True) for scanner in self._scanners]
        return self._end(found) or Checked(self.held)

    def take_in(self, text: str, found: Iterable[Match | None]) -> Checked:
        """What its scanners found in a text that was fed to them."""
        self.held += text
        return self._end(found) or Checked(self._release(min(scanner.num_free for scanner in self._scanners)))

    def _end(self, found: Iterable[Match | None]) -> Checked | None:
        """The answer's end, if something was found."""
        first = min((match for match in found if match is not None), default=None)
        return None if first is None else Checked(self._release(first.start), self._rules.finding(first))

    def _release(self, position: int) -> str:
        """What is held before `position`; nothing if that has left already (a match longer than its rule said)."""
        count = max(position - self._num_released, 0)
        free, self.held = self.held[:count], self.held[count:]
        self._num_released += count
        return free


class _Compiled(msgspec.Struct, frozen=True):
    of_input: RuleSet | None
    of_output: RuleSet | None


class RuleBook:
    """All rules, compiled for each model and tier that some rule names, and for all others. Read-only after birth."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._models = {model for rule in rules for model in rule.models}
        self._tiers = {tier for rule in rules for tier in rule.tiers}
        self._sets: dict[tuple[int, ...], RuleSet] = {}
        self._compiled = {
            (model, tier): self._compile(model, tier) for model in (*self._models, None) for tier in (*self._tiers, None)
        }

    def _compile(self, model: str | None, tier: str | None) -> _Compiled:
        applying = [index for index, rule in enumerate(self._rules) if rule.applies_to(model=model, tier=tier)]
        return _Compiled(
            self._set(index for index in applying if self._rules[index].is_of_input),
            self._set(index for index in applying if self._rules[index].is_of_output),
        )

    def _set(self, indexes: Iterable[int]) -> RuleSet | None:
        key = tuple(indexes)
        if not key:
            return None
        if key not in self._sets:
            self._sets[key] = RuleSet(self._rules, key)
        return self._sets[key]

    def _find(self, context: CheckContext) -> _Compiled:
        model = context.model if context.model in self._models else None
        return self._compiled[model, context.tier if context.tier in self._tiers else None]

    def input_rules(self, context: CheckContext) -> RuleSet | None:
        """None where nothing is looked for."""
        return self._find(context).of_input

    def check_input(self, context: CheckContext, texts: Iterable[str]) -> Finding | None:
        """Each text by itself: a phrase does not go on from one message to the next."""
        rules = self._find(context).of_input
        if rules is None:
            return None
        for text in texts:
            if (match := rules.first_in(text)) is not None:
                return rules.refusal(match)
        return None

    def check_whole(self, context: CheckContext, text: str) -> Checked:
        """An answer that is there at once."""
        rules = self._find(context).of_output
        match = rules.first_in(text) if rules is not None else None
        if rules is None or match is None:
            return Checked(text)
        return Checked(text[: match.start], rules.finding(match))

    def check_output(self, context: CheckContext) -> AnswerScan | None:
        """None where nothing is looked for."""
        rules = self._find(context).of_output
        return AnswerScan(rules) if rules is not None else None
