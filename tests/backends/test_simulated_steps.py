"""The simulated model answers from its cache, through the blocks that the step names, in the time that SPEC S10 says."""

from array import array

import pytest

from backends.base import KvLayout
from backends.bytes_model import END, BytesTokenizer
from backends.models import create_model
from backends.simulated_steps import Answer, SimulatedStepBackend, SimulatedSteps
from batcher.errors import ConfigError, InvalidRequest
from batcher.types import GREEDY, PENDING, Message, ScheduledSequence, Step

LAYOUT = KvLayout(num_blocks=8, max_num_seqs=2, max_model_len=128, max_step_tokens=64)
PROMPT = BytesTokenizer().render([Message("system", "be brief"), Message("user", "hello there")])


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def make(**settings: object) -> tuple[SimulatedStepBackend, Clock]:
    clock = Clock()
    backend = SimulatedStepBackend(SimulatedSteps(**settings), clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    backend.load(LAYOUT)
    return backend, clock


def part(tokens: list[int], start: int, table: list[int], *, slot: int = 0, is_sampled: bool = True) -> ScheduledSequence:
    return ScheduledSequence(7, slot, tokens, start, array("i", table), is_sampled, GREEDY)


def run(backend: SimulatedStepBackend, *parts: ScheduledSequence) -> list[int]:
    backend.launch(Step(1, parts, sum(len(each.tokens) for each in parts)))
    return backend.collect()


def answer(backend: SimulatedStepBackend, table: list[int], num: int, *, chunk: int = 64) -> bytes:
    for start in range(0, len(PROMPT), chunk):
        end = min(start + chunk, len(PROMPT))
        tokens = run(backend, part(PROMPT[start:end], start, table, is_sampled=end == len(PROMPT)))
    for position in range(len(PROMPT), len(PROMPT) + num - 1):
        tokens += run(backend, part([PENDING], position, table))
    return bytes(token if token != END else ord("$") for token in tokens)


@pytest.mark.parametrize("chunk", [5, 16, 64])
def test_it_echoes_the_last_user_turn_and_ends(chunk: int) -> None:
    backend, _ = make()
    assert answer(backend, [3, 1, 6], 12, chunk=chunk) == b"hello there$"


def test_it_repeats_where_lengths_are_the_callers() -> None:
    backend, _ = make(answer=Answer.REPEAT)
    assert answer(backend, [0, 1, 2, 3], 15) == b"hello therehell"


def test_a_block_that_somebody_overwrote_shows_in_the_answer() -> None:
    backend, _ = make()
    run(backend, part(PROMPT[:16], 0, [3, 1, 6], is_sampled=False))
    run(backend, part([ord("x")] * 16, 0, [3], slot=1, is_sampled=False))
    [token] = run(backend, part(PROMPT[16:], 16, [3, 1, 6]))
    assert token != ord("h")


def test_it_goes_on_where_it_was_after_a_preemption() -> None:
    backend, _ = make()
    said = list(answer(backend, [0, 1, 2], 5))
    again = PROMPT + said
    assert bytes(run(backend, part(again, 0, [5, 6, 7], slot=1))) == b" "


def test_two_steps_in_flight_hand_on_the_pending_token() -> None:
    backend, _ = make()
    backend.launch(Step(1, (part(PROMPT, 0, [0, 1, 2]),), len(PROMPT)))
    backend.launch(Step(2, (part([PENDING], len(PROMPT), [0, 1, 2]),), 1))
    assert bytes(backend.collect() + backend.collect()) == b"he"


def test_a_step_takes_what_the_roofline_says() -> None:
    backend, clock = make()
    run(backend, part([65], 0, [0]))
    assert clock.now - 100.0 == pytest.approx((140e9 + 327_680) / 26.8e12)


def test_padding_takes_its_time() -> None:
    backend, clock = make(weight_bytes=1e9)
    backend.launch(Step(1, (part([65], 0, [0]),), 1, num_padding=255))
    backend.collect()
    assert clock.now - 100.0 == pytest.approx(1e9 * 256 / (8 * 989e12 * 0.5))


def test_the_published_arithmetic() -> None:
    hardware = SimulatedSteps()
    assert hardware.step_s(1, 0) == pytest.approx(0.0052, abs=5e-5)
    assert hardware.step_s(256, 256 * 2000) == pytest.approx(0.0115, abs=5e-5)
    assert hardware.step_s(8700, 8700) == pytest.approx(0.3, abs=0.01)
    assert hardware.kv_bytes / hardware.kv_bytes_per_token == pytest.approx(1.22e6, rel=0.01)


def test_without_a_scale_it_takes_no_time() -> None:
    backend, clock = make(time_scale=0.0)
    answer(backend, [0, 1, 2], 5)
    assert clock.now == 100.0


def test_bytes_are_tokens_and_turns_have_ids_of_their_own() -> None:
    tokenizer = BytesTokenizer()
    assert tokenizer.encode("é\x00") == [0xC3, 0xA9, 0]
    assert tokenizer.render([Message("user", "a")]) == [258, 97, 256, 259]
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode("aé🙂"))) == "aé🙂".encode()
    assert tokenizer.token_bytes(END) == b""
    with pytest.raises(InvalidRequest, match="role"):
        tokenizer.render([Message("wizard", "a")])


def test_names_of_models() -> None:
    model = create_model("simulated", settings={"time_scale": 0.0})
    assert (model.info.id, model.tokenizer.vocab_size) == ("simulated", model.info.vocab_size)
    with pytest.raises(ConfigError, match="none of them"):
        create_model("no/such/model")
    with pytest.raises(ConfigError, match="time_scale"):
        create_model("simulated", settings={"time_scale": -1.0})
    with pytest.raises(ConfigError, match="colour"):
        create_model("simulated", settings={"colour": 1})
    with pytest.raises(ConfigError, match="only 'simulated' does"):
        create_model("smollm2", settings={"time_scale": 0.0})
