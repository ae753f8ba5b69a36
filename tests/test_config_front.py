"""Every bound of the stages that each request passes is checked at birth, as those of the modes are."""

import msgspec
import pytest

from batcher.config import IdempotencyConfig, LimitMode, LimitsConfig, SafetyConfig, UsageConfig
from tests.test_config import above, below, refused


@pytest.mark.parametrize(
    ("kind", "field", "low", "high"),
    [
        (LimitsConfig, "redis_timeout_s", 0.001, 60.0),
        (LimitsConfig, "max_keys", 1, 10_000_000),
        (SafetyConfig, "timeout_s", 0.001, 60.0),
        (IdempotencyConfig, "keep_s", 1.0, 86_400.0),
        (IdempotencyConfig, "max_answers", 1, 10_000_000),
        (IdempotencyConfig, "max_bytes", 1_000_000, 2**40),
        (IdempotencyConfig, "wait_s", 0.0, 3600.0),
        (UsageConfig, "segment_bytes", 4096, 2**40),
    ],
)
def test_each_number_of_the_front_door_works_at_its_bounds_and_is_refused_beyond(
    kind: type[msgspec.Struct], field: str, low: float, high: float
) -> None:
    for value in (low, high):
        assert getattr(kind(**{field: value}), field) == value
    for value in (below(low), above(high)):
        assert f"is {value!r}; it must be from " in refused(kind, field, value)


@pytest.mark.parametrize("url", ["", "localhost", "http://localhost", "redis://", "redis:///1", "redis:localhost"])
def test_a_redis_that_is_no_address_is_refused_and_its_password_is_not_repeated(url: str) -> None:
    assert LimitsConfig(redis_url="rediss://user:secret@cache:6380/2").redis_url
    assert "redis://HOST:PORT/DB" in refused(LimitsConfig, "redis_url", url)
    assert "secret" not in refused(LimitsConfig, "redis_url", "http://user:secret@cache")


@pytest.mark.parametrize("database", ["prod", "-1", "1.5", "1/2", "0/", "%31", "1e3", "٣", "prod?db=1"])
def test_a_database_that_is_no_number_is_refused_and_not_taken_for_the_first(database: str) -> None:
    for said in ("", "/", "/0", "/15", "/0?db=1"):
        assert IdempotencyConfig(redis_url=f"redis://cache{said}").redis_url
    assert "with a number for DB" in refused(IdempotencyConfig, "redis_url", f"redis://cache/{database}")


def test_leases_need_a_redis_to_lease_from() -> None:
    assert "limit_mode" in refused(LimitsConfig, "mode", LimitMode.LEASE)


def test_a_checker_is_a_module_and_an_attribute() -> None:
    assert "MODULE:ATTR" in refused(SafetyConfig, "checker", "module")
    assert (SafetyConfig(checker="m:a").is_on, SafetyConfig().is_on) == (True, False)
