"""The rules' file: what an operator writes, checked whole at start.

    [[rules]]
    name = "internal-names"                 # how metrics and logs know it
    phrases = ["project heron", "heron-7"]  # or regex = "sk-[a-z0-9]{20}", in RE2's syntax, with max_length = 23
    where = "output"                        # input, output or both (the default)
    verdict = "stop"                        # refuse (the default) or stop
    ignore_case = true                      # the default
    models = ["smollm2"]                    # without it: every model; likewise tiers = ["free"]
    message = "this answer is not available"

A rule that is wrong stops the start, by its name. So does one for a model or a tier that there is not: with a
misspelt name it would never apply, and nobody would know.
"""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from batcher.config.wording import in_words, why_unread
from batcher.errors import ConfigError
from batcher.regular_file import open_regular
from batcher.service.safety.contract import Verdict
from batcher.service.safety.expressions import check_all_expressions, check_expression
from batcher.service.safety.spaces import BREAK

MAX_RULES = 500
"""Each may be a label of metrics."""
MAX_PHRASE_CHARS = 200
"""As much of an answer may be held back, and MAX_RUN characters for each space."""
MAX_ALL_PHRASES_CHARS = 200_000
"""Of all phrases together: each may become a node of an automaton, some 300 bytes."""
MAX_EXPRESSIONS = 100
"""Each looks for the beginning of a match at each character of an answer, about 0.3 microseconds."""
MAX_FILE_BYTES = 4 * 2**20
DEFAULT_MAX_LENGTH = 200


class Where(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    BOTH = "both"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One rule. Raises ConfigError for what cannot be."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    phrases: tuple[Annotated[str, Meta(min_length=1, max_length=MAX_PHRASE_CHARS)], ...] = ()
    """Found wherever they stand, also within words. Whitespace in them is found as any run of whitespace, up to MAX_RUN
    characters: a line break, a no-break space; a word that is broken by a hyphen is another."""
    regex: str | None = None
    """In RE2's syntax, whose `\\w`, `\\d`, `\\s` and `\\b` know ASCII only."""
    max_length: Annotated[int, Meta(ge=1, le=4096)] = DEFAULT_MAX_LENGTH
    """Of a regex: characters of the longest match whose beginning is held back in an answer. A regex that begins with something
    definite holds back only where that stands; one that begins with anything (`.*`, `\\b`) holds back so many all the time."""
    where: Where = Where.BOTH
    verdict: Verdict = Verdict.REFUSE
    ignore_case: bool = True
    models: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    message: Annotated[str, Meta(min_length=1, max_length=500)] = "a safety rule does not allow this text"

    def __post_init__(self) -> None:
        if bool(self.phrases) == (self.regex is not None):
            raise ConfigError(f"safety rule {self.name!r}: it must have either phrases or a regex")
        if self.where is Where.INPUT and self.verdict is Verdict.STOP:
            raise ConfigError(f"safety rule {self.name!r}: there is no answer to stop in the input; its verdict must be refuse")
        if self.regex is not None:
            self.expression()
        for phrase in self.phrases:
            if phrase.isspace() or BREAK in phrase:
                raise ConfigError(
                    f"safety rule {self.name!r}: the phrase {phrase!r} must have something beside whitespace in it, "
                    "and only characters of text"
                )

    def expression(self) -> str:
        """The regex as RE2 is to read it. Raises ConfigError."""
        assert self.regex is not None
        return check_expression(self.regex, ignores_case=self.ignore_case, rule=self.name)

    def applies_to(self, *, model: str | None, tier: str | None) -> bool:
        """None is a model, or a tier, that no rule names."""
        return (not self.models or model in self.models) and (not self.tiers or tier in self.tiers)

    @property
    def is_of_input(self) -> bool:
        return self.where is not Where.OUTPUT

    @property
    def is_of_output(self) -> bool:
        return self.where is not Where.INPUT


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rules: Annotated[list[dict[str, object]], Meta(min_length=1, max_length=MAX_RULES)]


def load_rules(file: Path, *, models: tuple[str, ...], tiers: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules in the file's order. Raises ConfigError that names the rule."""
    try:
        with open_regular(file) as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"the safety rules {file} are larger than {MAX_FILE_BYTES} bytes")
        table = tomllib.loads(data.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the safety rules {file}: {why_unread(error)}") from error
    try:
        written = msgspec.convert(table, _File).rules
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot read the safety rules {file}: {in_words(error, _File, table)}") from error
    rules = tuple(_rule(values, number) for number, values in enumerate(written, 1))
    _check_together(rules, models, tiers)
    return rules


def _rule(values: dict[str, object], number: int) -> Rule:
    name = values.get("name", f"number {number}")
    try:
        return msgspec.convert(values, Rule)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from None
        raise ConfigError(f"safety rule {name!r}: {in_words(error, Rule, values)}") from error


def _check_together(rules: tuple[Rule, ...], models: tuple[str, ...], tiers: tuple[str, ...]) -> None:
    names: set[str] = set()
    for rule in rules:
        if rule.name in names:
            raise ConfigError(f"safety rule {rule.name!r}: there are two of this name")
        names.add(rule.name)
        for model in rule.models:
            if model not in models:
                raise ConfigError(f"safety rule {rule.name!r}: there is no model {model!r}; there is {', '.join(models)}")
        for tier in rule.tiers:
            if tier not in tiers:
                raise ConfigError(f"safety rule {rule.name!r}: there is no tier {tier!r}; there are {', '.join(tiers)}")
    if sum(len(phrase) for rule in rules for phrase in rule.phrases) > MAX_ALL_PHRASES_CHARS:
        raise ConfigError(f"the phrases of the safety rules have more than {MAX_ALL_PHRASES_CHARS} characters together")
    expressions = [rule.expression() for rule in rules if rule.regex is not None]
    check_all_expressions(expressions)
    if len(expressions) > MAX_EXPRESSIONS:
        raise ConfigError(f"there are more than {MAX_EXPRESSIONS} safety rules with a regex")
