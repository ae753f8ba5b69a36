"""The rules' file: what it can say, and how it is told that it is wrong."""

from pathlib import Path

import pytest

from batcher.errors import ConfigError
from batcher.service.safety.contract import CheckContext, Finding, Verdict
from batcher.service.safety.rulebook import RuleBook
from batcher.service.safety.rules import load_rules
from tests.service.safety.checkers import CONTEXT, load


def test_a_rule_applies_to_its_models_its_tiers_and_its_side(tmp_path: Path) -> None:
    rules = RuleBook(
        load(
            tmp_path,
            """
            [[rules]]
            name = "free-simulated"
            phrases = ["heron"]
            models = ["simulated"]
            tiers = ["free"]

            [[rules]]
            name = "answers"
            phrases = ["egret"]
            where = "output"
            verdict = "stop"
            message = "no such bird"

            [[rules]]
            name = "questions"
            regex = "sto+rk"
            where = "input"
            """,
        )
    )
    text = "heron egret stork"

    def found(context: CheckContext) -> tuple[str | None, str | None]:
        finding = rules.check_input(context, [text])
        answered = rules.check_whole(context, text)
        return getattr(finding, "rule", None), getattr(answered.finding, "rule", None)

    assert found(CheckContext("t", "free", "simulated")) == ("free-simulated", "free-simulated")
    assert found(CheckContext("t", "paid", "simulated")) == ("questions", "answers")
    assert found(CheckContext("t", "free", "smollm2")) == ("questions", "answers")
    assert rules.check_whole(CONTEXT, text).text == "heron "
    assert rules.check_whole(CONTEXT, text).finding == Finding(Verdict.STOP, "answers", "no such bird")


def test_what_is_found_in_the_input_is_refused_even_where_an_answer_would_stop(tmp_path: Path) -> None:
    rules = RuleBook(load(tmp_path, '[[rules]]\nname = "both"\nphrases = ["heron"]\nverdict = "stop"'))
    finding = rules.check_input(CONTEXT, ["fine", "A HERON"])
    assert finding is not None
    assert finding.verdict is Verdict.REFUSE


def test_where_no_rule_looks_nothing_is_made_for_an_answer(tmp_path: Path) -> None:
    rules = RuleBook(load(tmp_path, '[[rules]]\nname = "input"\nphrases = ["heron"]\nwhere = "input"'))
    assert rules.check_output(CONTEXT) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules = [", "cannot read the safety rules"),
        ("rules = []", "cannot read the safety rules"),
        ("[[rule]]\nname = 'x'", "has no setting 'rule'; did you mean rules?"),
        ("[[rules]]\nphrases = ['x']", "safety rule 'number 1': Object missing required field `name`"),
        ("[[rules]]\nname = 'two words'\nphrases = ['x']", "safety rule 'two words'"),
        ("[[rules]]\nname = 'a'", "safety rule 'a': it must have either phrases or a regex"),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\nregex = 'x'", "safety rule 'a': it must have either"),
        (
            "[[rules]]\nname = 'a'\nphrases = ['x', ' ']",
            "safety rule 'a': the phrase ' ' must have something beside whitespace",
        ),
        ('[[rules]]\nname = "a"\nphrases = ["x \\U0010ffff"]', "and only characters of text"),
        ("[[rules]]\nname = 'a'\nphrases = ['']", "safety rule 'a': Expected `str` of length >= 1"),
        (f"[[rules]]\nname = 'a'\nphrases = ['{'x' * 201}']", "safety rule 'a': Expected `str` of length <= 200"),
        (
            "[[rules]]\nname = 'a'\nphrases = ['x']\nverdict = 'warn'",
            "safety rule 'a': verdict is 'warn'; it must be refuse or stop",
        ),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\nwhere = 'input'\nverdict = 'stop'", "safety rule 'a': there is no answer"),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\ncase = true", "safety rule 'a': has no setting 'case'"),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\nmodels = ['gpt']", "safety rule 'a': there is no model 'gpt'"),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\ntiers = ['gold']", "safety rule 'a': there is no tier 'gold'"),
        ("[[rules]]\nname = 'a'\nregex = '('", "safety rule 'a': the regex"),
        ("[[rules]]\nname = 'a'\nphrases = ['x']\n" * 2, "safety rule 'a': there are two"),
        ("".join(f"[[rules]]\nname = 'a{n}'\nregex = 'x{n}'\n" for n in range(101)), "more than 100 safety rules"),
        ("".join(f"[[rules]]\nname = 'a{n}'\nregex = 'x{n}[a-z]{{70}}'\n" for n in range(90)), "than 10000 instructions"),
        ("".join(f"[[rules]]\nname = 'a{n}'\nphrases = ['x']\n" for n in range(501)), "length <= 500"),
    ],
)
def test_a_rule_that_is_wrong_is_told_by_its_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    assert words in str(refused.value)


def test_a_file_that_is_not_there_or_too_large_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than"):
        load(tmp_path, "#" * (4 * 2**20 + 1))
    (tmp_path / "rules.toml").unlink()
    (tmp_path / "rules.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot read the safety rules"):
        load_rules(tmp_path / "rules.toml", models=(), tiers=())


def test_what_has_no_end_is_not_read() -> None:
    with pytest.raises(ConfigError, match="cannot read the safety rules /dev/zero: it is no regular file"):
        load_rules(Path("/dev/zero"), models=(), tiers=())


def test_the_example_is_a_file_of_rules() -> None:
    rules = load_rules(Path(__file__).parents[3] / "examples" / "safety_rules.toml", models=("any",), tiers=("paid", "free"))
    assert [rule.name for rule in rules] == ["internal-names", "api-keys", "free-tier-topics"]
