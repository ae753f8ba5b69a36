"""The budget of extra calls: full at first, filled by fresh batches, half of it out of reach of splits."""

from batcher.core.dispatch.retry import RetryBudget


def test_the_budget_starts_full_and_gives_what_it_has() -> None:
    budget = RetryBudget(ratio=0.5, reserve=3)

    assert budget.withdraw(2)
    assert budget.withdraw(1)
    assert not budget.withdraw(1)
    assert budget.num_available == 0.0


def test_a_withdrawal_that_is_too_large_takes_nothing() -> None:
    budget = RetryBudget(ratio=0.5, reserve=3)

    assert not budget.withdraw(4)
    assert budget.num_available == 3.0


def test_fresh_batches_fill_the_budget_by_the_ratio_and_never_above_the_reserve() -> None:
    budget = RetryBudget(ratio=0.25, reserve=2)
    assert budget.withdraw(2)
    for _ in range(3):
        budget.deposit()
    assert not budget.withdraw(1)
    budget.deposit()
    assert budget.withdraw(1)

    for _ in range(100):
        budget.deposit()

    assert budget.num_available == 2.0


def test_a_share_leaves_the_rest_of_the_reserve_for_others() -> None:
    """Of 8 a share of one half may have 4, however they are taken, and as much again only once that was earned."""
    budget = RetryBudget(ratio=1.0, reserve=8)
    assert not budget.withdraw(5, share=0.5)
    assert budget.withdraw(4, share=0.5)
    assert not budget.withdraw(1, share=0.5)
    budget.deposit()
    assert budget.withdraw(1, share=0.5)

    assert budget.num_available == 4.0
    assert budget.withdraw(4)


def test_a_reserve_of_zero_allows_no_retry_ever() -> None:
    budget = RetryBudget(ratio=1.0, reserve=0)
    budget.deposit()

    assert not budget.withdraw(1)
    assert budget.withdraw(0)
