import pytest

from batcher.sim.traffic import mix_of_paid_share, requests
from batcher.sim.workload import Constant, Poisson


def test_ids_count_up_and_instants_end_before_the_duration() -> None:
    made = list(requests(Constant(10.0), mix_of_paid_share(1.0), seed=1, duration_s=1.0, deadline_s=2.0))
    assert [request.id for request in made] == list(range(10))
    assert all(request.deadline_at == request.arrived_at + 2.0 for request in made)


def test_a_number_of_requests_is_enough() -> None:
    made = requests(Constant(10.0), mix_of_paid_share(1.0), seed=1, duration_s=1e9, deadline_s=2.0, max_requests=3)
    assert len(list(made)) == 3


def test_another_mix_does_not_move_the_arrivals() -> None:
    def instants(paid_share: float) -> list[float]:
        made = requests(Poisson(100.0), mix_of_paid_share(paid_share), seed=1, duration_s=5.0, deadline_s=1.0)
        return [request.arrived_at for request in made]

    assert instants(1.0) == instants(0.2)


def test_a_size_moves_neither_the_arrivals_nor_the_senders() -> None:
    def drawn(input_size: int | None) -> list[tuple[float, str]]:
        made = requests(Poisson(100.0), mix_of_paid_share(0.3), seed=1, duration_s=5.0, deadline_s=1.0, input_size=input_size)
        return [(request.arrived_at, request.tenant) for request in made]

    assert drawn(None) == drawn(40)


def test_paid_and_free_come_by_their_share_from_so_many_tenants() -> None:
    mix = mix_of_paid_share(0.25, num_tenants=3)
    made = list(requests(Poisson(1000.0), mix, seed=1, duration_s=10.0, deadline_s=1.0))
    assert sum(request.tier == "paid" for request in made) / len(made) == pytest.approx(0.25, abs=0.02)
    assert {request.tenant for request in made} == {f"{tier}-{num}" for tier in ("paid", "free") for num in range(3)}


def test_with_a_size_each_input_is_different_and_charged_at_most_so_much() -> None:
    made = list(requests(Constant(100.0), mix_of_paid_share(1.0), seed=1, duration_s=1.0, deadline_s=1.0, input_size=40))
    assert len({request.input for request in made}) == 100
    assert 1 <= min(request.num_bytes for request in made) <= max(request.num_bytes for request in made) <= 40
