"""Greedy answers are those of transformers' `generate`, token for token, in every family and however they are scheduled.

The whole bar is `python -m benchmarks.exactness`; this is the share of it that every test run can pay for.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from transformers import PreTrainedModel

from backends.llm.config import read_config
from backends.llm.cpu_ops import create_cpu_ops
from backends.llm.runner import TorchBackend
from backends.llm.torch_ops import TorchOps
from backends.llm.weights import find_model, load_weights
from benchmarks.exactness import layout, make_cases, serve_setting, settings
from benchmarks.offline import Case
from benchmarks.reference import as_transformers, compare, generate
from tests.backends.llm.tiny import FAMILIES, VOCAB_SIZE, make_tiny

MAX_PROMPT_TOKENS = 300
MAX_TOKENS = 24
MAX_LEN = MAX_PROMPT_TOKENS + MAX_TOKENS
STOP_ID = 2
SETTINGS = settings(MAX_LEN, chunk=64)


class Known(NamedTuple):
    """Prompts, and what transformers answers to them."""

    model: PreTrainedModel
    cases: list[Case]
    expected: list[list[int]]

    def check(self, answers: list[list[int]]) -> None:
        differences = compare(self.model, self.cases, answers, self.expected)
        for difference in differences:
            print(difference)  # pytest shows it when the test fails.
        assert all(difference.is_tie for difference in differences)
        assert len(differences) <= 1, "ties are rare: more of them mean sums that are not those of float32"


class Family(NamedTuple):
    known: Known
    backends: dict[str, TorchBackend]
    """By the operations that they run on."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads of a busy machine wait for each other at every operation."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[Family]:
    tiny = make_tiny(request.param, tmp_path_factory.mktemp(request.param))
    config = read_config(tiny.path)
    text = torch.randint(3, VOCAB_SIZE, (2000,), generator=torch.Generator().manual_seed(5)).tolist()
    cases = make_cases(text, num=14, max_prompt_tokens=MAX_PROMPT_TOKENS, max_tokens=MAX_TOKENS, seed=1)
    backends = {}
    for name, ops in {"reference": TorchOps(), "cpu": create_cpu_ops()}.items():
        backends[name] = TorchBackend(config, lambda: load_weights(tiny.path, config, torch.float32), ops=ops)
        backends[name].load(layout(MAX_LEN))
    yield Family(Known(tiny.model, cases, generate(tiny.model, cases, stop_ids=[STOP_ID])), backends)
    for backend in backends.values():
        backend.close()


# The reference operations are the slow ones: two settings show that they serve as well.
RUNS = [("cpu", name) for name in SETTINGS] + [
    ("reference", "mixed, in chunks"),
    ("reference", "small pool, shared prefixes, ahead"),
]


@pytest.mark.parametrize(("ops", "name"), [pytest.param(ops, name, id=f"{ops}, {name}") for ops, name in RUNS])
def test_tiny_models_answer_as_transformers(family: Family, ops: str, name: str) -> None:
    known = family.known
    served, fitting = serve_setting(family.backends[ops], SETTINGS[name], known.cases, stop_ids=frozenset({STOP_ID}))
    assert len(fitting) == len(known.cases)
    known.check(served.answers)
    # A setting that brings about nothing would prove nothing.
    assert (served.counters.num_preemptions > 0) == name.startswith("small pool")
    assert (served.counters.num_cached_tokens > 0) == ("shared prefixes" in name)
    assert len({tuple(answer) for answer in served.answers}) > len(served.answers) / 2


@pytest.mark.timeout(180)
def test_smollm2_answers_as_transformers() -> None:
    path = find_model("smollm2")
    config = read_config(path)
    text = torch.randint(100, 40_000, (600,), generator=torch.Generator().manual_seed(6)).tolist()
    cases = make_cases(text, num=6, max_prompt_tokens=70, max_tokens=8, seed=2)
    model = as_transformers(config, load_weights(path, config, torch.float32))
    known = Known(model, cases, generate(model, cases))
    backend = TorchBackend(config, lambda: load_weights(path, config, torch.float32), ops=create_cpu_ops())
    backend.load(layout(78))
    for name in ("mixed, in chunks", "small pool, shared prefixes, ahead"):
        served, _ = serve_setting(backend, settings(78, chunk=32)[name], cases)
        known.check(served.answers)
