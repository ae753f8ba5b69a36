"""Every bound is checked at birth, and a refusal names the setting and its value (B12: never on the first request)."""

from math import inf, nan
from typing import Any

import msgspec
import pytest

from batcher.config import (
    DEFAULT_TIERS,
    MAX_WORKERS,
    DispatchConfig,
    HttpConfig,
    KeyConfig,
    PolicyName,
    RateLimit,
    TierConfig,
    check_tiers,
)
from batcher.config.tiers import MAX_PER_MINUTE
from batcher.errors import ConfigError
from batcher.settings import Settings

DIGEST = "0123456789abcdef" * 4

DISPATCH_BOUNDS: list[tuple[str, float, float]] = [
    ("num_workers", 1, MAX_WORKERS),
    ("max_batch_size", 1, 50),
    ("batch_timeout_s", 0.0, 60.0),
    ("service_time_s", 0.0001, 3600.0),
    ("max_waiting", 1, 1_000_000),
    ("max_waiting_bytes", 1, 2**40),
    ("max_attempts", 1, 10),
    ("hang_factor", 1.0, 100.0),
    ("first_batch_timeout_s", 0.001, 3600.0),
    ("start_timeout_s", 0.001, 3600.0),
    ("retry_ratio", 0.0, 1.0),
    ("retry_reserve", 0, 10_000),
    ("restart_backoff_s", 0.0, 60.0),
    ("breaker_threshold", 1, 1000),
    ("breaker_rest_s", 0.0, 3600.0),
]
HTTP_BOUNDS: list[tuple[str, float, float]] = [
    ("port", 0, 65535),
    ("max_body_bytes", 64, 100_000_000),
    ("max_pending_body_bytes", 128, 2**40),
    ("body_timeout_s", 0.01, 600.0),
    ("keep_alive_s", 0.01, 3600.0),
    ("max_connections", 1, 1_000_000),
    ("request_timeout_s", 0.001, 3600.0),
    ("drain_deadline_s", 0.0, 3600.0),
]


def spoken(field: str) -> str:
    """The name by which the operator knows the setting: without the unit, and `workers` for their number."""
    return field.removesuffix("_s").removeprefix("num_")


def below(bound: float) -> float:
    return bound - 1 if isinstance(bound, int) else bound - 0.00005


def above(bound: float) -> float:
    return bound + 1 if isinstance(bound, int) else bound + 0.5


def refused(kind: type[msgspec.Struct], field: str, value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        kind(**{field: value})
    return str(caught.value)


def test_the_defaults_are_the_contract() -> None:
    """SPEC S1 and DESIGN D5: 16 workers, batches of 50, 150 ms, a service time of 200 ms, the paced policy, paid and free."""
    config = DispatchConfig()

    assert (config.num_workers, config.max_batch_size, config.policy) == (16, 50, PolicyName.PACED)
    assert (config.batch_timeout_s, config.service_time_s) == (0.15, 0.2)
    assert config.tiers == ("paid", "free")
    assert HttpConfig().is_loopback


@pytest.mark.parametrize(("field", "low", "high"), DISPATCH_BOUNDS)
def test_each_dispatch_setting_works_at_its_bounds(field: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(DispatchConfig(**{field: value}), field) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "low", "high"), DISPATCH_BOUNDS)
def test_each_dispatch_setting_is_refused_beyond_its_bounds(field: str, low: float, high: float) -> None:
    for value in (below(low), above(high)):
        message = refused(DispatchConfig, field, value)
        assert message.startswith(f"{spoken(field)} is {value!r}; it must be from ")


@pytest.mark.parametrize(("field", "low", "high"), HTTP_BOUNDS)
def test_each_http_setting_works_at_its_bounds_and_is_refused_beyond(field: str, low: float, high: float) -> None:
    for value in (low, high):
        assert getattr(HttpConfig(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in (below(low), above(high)):
        message = refused(HttpConfig, field, value)
        assert message.startswith(f"{spoken(field)} is {value!r}; it must be from ")


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    """A timeout of NaN compares false with everything: no batch would ever leave, and no error would say why."""
    for field in ("batch_timeout_s", "service_time_s", "hang_factor", "retry_ratio"):
        assert f"is {value!r}" in refused(DispatchConfig, field, value)


def test_every_number_of_the_dispatcher_has_a_bound_here() -> None:
    """A setting that is added later must be checked too."""
    numbers = {field.name for field in msgspec.structs.fields(DispatchConfig)} - {"tiers", "policy"}

    assert numbers == {field for field, _, _ in DISPATCH_BOUNDS}


def test_the_edges_together_make_a_config() -> None:
    """B12: batches of one, no wait, one worker, a queue of one, no retries: each works or is refused, and these work."""
    config = DispatchConfig(
        num_workers=1, max_batch_size=1, batch_timeout_s=0.0, max_waiting=1, max_attempts=1, retry_reserve=0, retry_ratio=0.0
    )

    assert config.max_batch_size == 1


def test_a_queue_of_zero_is_refused_with_a_message_that_says_what_would_do() -> None:
    """B12: a queue limit of zero crashed on the first request."""
    assert refused(DispatchConfig, "max_waiting", 0) == "max_waiting is 0; it must be from 1 to 1000000 requests"


@pytest.mark.parametrize("tiers", [(), ("paid", "paid")])
def test_tiers_of_the_dispatcher_are_one_or_more_and_different(tiers: tuple[str, ...]) -> None:
    assert refused(DispatchConfig, "tiers", tiers).startswith(f"tiers is {tiers!r}")


def test_a_config_cannot_be_changed_after_its_check() -> None:
    config = DispatchConfig()

    with pytest.raises(AttributeError):
        config.max_batch_size = 0  # type: ignore[misc]

    assert config.max_batch_size == 50


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="max_batchsize"):
        msgspec.convert({"max_batchsize": 3}, DispatchConfig)


# tiers


@pytest.mark.parametrize("name", ["", "Paid", "paid tier", "1st", "paid\n", "x" * 33, "päid"])
def test_a_tier_has_a_short_lower_case_name(name: str) -> None:
    """It labels metrics, so that it must come from a small set of tame words (B91)."""
    with pytest.raises(ConfigError) as caught:
        TierConfig(name)

    assert str(caught.value).startswith(f"tier name is {name!r}")


@pytest.mark.parametrize("name", ["a", "paid", "free-2", "x" * 32, "a_b"])
def test_tame_names_are_tiers(name: str) -> None:
    assert TierConfig(name).name == name


@pytest.mark.parametrize("budget_s", [-0.001, 3600.5, nan])
def test_a_wait_budget_beyond_its_bounds_names_its_tier(budget_s: float) -> None:
    with pytest.raises(ConfigError) as caught:
        TierConfig("paid", wait_budget_s=budget_s)

    assert str(caught.value).startswith(f"wait_budget_s of tier paid is {budget_s!r}; it must be from 0 to 3600 seconds")


@pytest.mark.parametrize("budget_s", [0.0, 3600.0])
def test_a_wait_budget_works_at_its_bounds(budget_s: float) -> None:
    assert TierConfig("paid", wait_budget_s=budget_s).wait_budget_s == budget_s


def test_tiers_together_are_1_to_8_and_different() -> None:
    check_tiers(DEFAULT_TIERS)
    check_tiers([TierConfig(f"t{index}") for index in range(8)])
    for names in ([], ["paid", "paid"], [f"t{index}" for index in range(9)]):
        with pytest.raises(ConfigError, match="tiers is"):
            check_tiers([TierConfig(name) for name in names])


def test_free_has_the_smaller_budget() -> None:
    """SPEC S1.4: free is refused first."""
    paid, free = DEFAULT_TIERS

    assert free.wait_budget_s < paid.wait_budget_s


@pytest.mark.parametrize(
    "name", ["requests_per_minute", "tokens_per_minute", "total_requests_per_minute", "total_tokens_per_minute"]
)
def test_a_limit_is_above_nothing_and_none_that_nobody_means(name: str) -> None:
    for value in (1, MAX_PER_MINUTE):
        assert getattr(TierConfig("paid", **{name: value}), name) == value
    for value in (0, -1, MAX_PER_MINUTE + 1):
        with pytest.raises(ConfigError, match=f"^{name} of tier paid is {value}; it must be from 1 to {MAX_PER_MINUTE}$"):
            TierConfig("paid", **{name: value})


def test_no_tier_is_named_as_the_operators_development_key() -> None:
    with pytest.raises(ConfigError, match="tier name is 'operator'"):
        TierConfig("operator")


# keys


def test_a_key_is_a_tenant_a_tier_and_a_digest() -> None:
    assert KeyConfig("acme.inc", "paid", DIGEST).tenant == "acme.inc"


@pytest.mark.parametrize("tenant", ["", "a b", "x" * 65, "a/b", "a\n"])
def test_a_tenant_of_wild_characters_is_refused(tenant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyConfig(tenant, "paid", DIGEST)

    assert str(caught.value).startswith(f"tenant of a key is {tenant!r}")


@pytest.mark.parametrize("digest", ["", "dev-paid", DIGEST.upper(), DIGEST[:-1], DIGEST + "0"])
def test_a_key_itself_in_place_of_its_digest_is_refused(digest: str) -> None:
    """D8: the key is never stored; whoever pastes it into the file is told so at start."""
    with pytest.raises(ConfigError, match="sha256 of acme's key"):
        KeyConfig("acme", "paid", digest)


def test_a_key_is_known_by_its_digest_unless_it_is_given_an_id() -> None:
    assert KeyConfig("acme", "paid", DIGEST).key_id == "key_0123456789ab"
    assert KeyConfig("acme", "paid", DIGEST, id="key_1").key_id == "key_1"
    for wild in ("", "a b", "key\r\nx", "x" * 65):
        with pytest.raises(ConfigError, match="id of acme's key"):
            KeyConfig("acme", "paid", DIGEST, id=wild)


def test_a_keys_own_limit_goes_before_its_tiers() -> None:
    tier = TierConfig("paid", requests_per_minute=10, tokens_per_minute=100)
    assert KeyConfig("acme", "paid", DIGEST).limit(tier) == RateLimit(10, 100) == tier.key_limit
    assert KeyConfig("acme", "paid", DIGEST, tokens_per_minute=7).limit(tier) == RateLimit(10, 7)
    assert KeyConfig("acme", "paid", DIGEST, requests_per_minute=7).limit(TierConfig("paid")) == RateLimit(7, None)
    with pytest.raises(ConfigError, match="requests_per_minute of acme's key is 0"):
        KeyConfig("acme", "paid", DIGEST, requests_per_minute=0)


# the address


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.1", False)],
)
def test_only_loopback_is_loopback(host: str, is_loopback: bool) -> None:
    settings: dict[str, Any] = {"host": host}

    assert HttpConfig(**settings).is_loopback is is_loopback


def test_the_largest_body_fits_into_a_tenants_half_of_all_that_may_be_pending() -> None:
    with pytest.raises(ConfigError, match="must be at least twice max_body_bytes"):
        Settings(max_body_bytes=1000, max_pending_body_bytes=1999)
    assert Settings(max_body_bytes=1000, max_pending_body_bytes=2000).http().max_pending_body_bytes == 2000
