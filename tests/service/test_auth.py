"""Who a key belongs to, and that looking for it tells nothing of others."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from batcher.config import NO_LIMIT, HttpConfig, KeyConfig, RateLimit, TierConfig
from batcher.errors import (
    ConfigError,
    InvalidRequest,
    NotAuthenticated,
    PermissionDenied,
    RateLimited,
    RequestTooLarge,
)
from batcher.service import auth
from batcher.service.auth import Caller, DevelopmentKeys, Keyring
from batcher.service.door import Door

TIERS = (TierConfig("paid", requests_per_minute=600), TierConfig("free", requests_per_minute=6, tokens_per_minute=1000))


def key(tenant: str, secret: bytes, tier: str = "paid", **more: Any) -> KeyConfig:
    return KeyConfig(tenant, tier, hashlib.sha256(secret).hexdigest(), **more)


# The configured keys


def test_a_key_is_its_owners_with_its_tier_its_id_and_its_limit() -> None:
    ring = Keyring([key("ada", b"a"), key("bob", b"b", "free", id="key_bob", tokens_per_minute=5, is_operator=True)], TIERS)
    digest = hashlib.sha256(b"a").hexdigest()
    assert ring.find(b"a") == Caller("ada", "paid", f"key_{digest[:12]}", RateLimit(600, None))
    assert ring.find(b"b") == Caller("bob", "free", "key_bob", RateLimit(6, 5), is_operator=True)
    for wrong in (b"", b"c", b"A", b"a ", digest.encode(), b"x" * 257):
        with pytest.raises(NotAuthenticated):
            ring.find(wrong)


def test_a_missing_key_is_told_from_a_wrong_one_and_no_more() -> None:
    ring = Keyring([key("ada", b"a")], TIERS)
    with pytest.raises(
        NotAuthenticated, match="no API key was given: send one in the x-api-key header, or as authorization: Bearer"
    ):
        ring.find(b"")
    told = set()
    for wrong in (b"c", b" ", b"x" * 257):
        with pytest.raises(NotAuthenticated) as refused:
            ring.find(wrong)
        told.add(refused.value.message)
    assert told == {"this API key is not valid"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([key("ada", b"a", "gold")], "'ada' names the tier 'gold'"),
        ([key("ada", b"a"), key("bob", b"a")], "'bob' is configured twice"),
        ([key("ada", b"a", id="one"), key("bob", b"b", id="one")], "'one' of 'bob' is configured twice"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys: list[KeyConfig], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Keyring(keys, TIERS)


def test_the_whole_digest_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is asked by a part of the digest alone, and what stands there is compared by hmac.compare_digest."""
    compared: list[tuple[bytes, bytes]] = []
    assert vars(auth)["compare_digest"] is hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return hmac.compare_digest(known, given)

    monkeypatch.setattr(auth, "compare_digest", compare)
    ring = Keyring([key("ada", b"a")], TIERS)
    digest = hashlib.sha256(b"a").digest()
    assert ring.find(b"a").tenant == "ada"
    assert compared == [(digest, digest)]
    # Another key whose digest begins alike: only the comparison tells them apart.
    ring._known = {hashlib.sha256(b"b").digest()[:8]: (digest, ring.find(b"a"))}
    compared.clear()
    with pytest.raises(NotAuthenticated):
        ring.find(b"b")
    assert compared == [(digest, hashlib.sha256(b"b").digest())]


def test_another_ring_takes_its_place_at_once() -> None:
    ring = Keyring([key("ada", b"a")], TIERS)
    find = ring.find
    ring.become(Keyring([key("bob", b"b")], TIERS))
    assert (find(b"b").tenant, len(ring)) == ("bob", 1)
    with pytest.raises(NotAuthenticated):
        find(b"a")


# The development keys


def test_development_keys_are_of_each_tier_of_names_and_one_is_the_operators() -> None:
    keys = DevelopmentKeys(TIERS)
    assert keys.find(b"dev-free") == Caller("dev-free", "free", "dev-free", RateLimit(6, 1000))
    assert keys.find(b"dev-paid-ada") == Caller("dev-paid-ada", "paid", "dev-paid-ada", RateLimit(600, None))
    assert keys.find(b"dev-operator") == Caller("dev-operator", "paid", "dev-operator", RateLimit(600, None), is_operator=True)
    for wrong in (
        b"dev-operator-x",
        b"dev-",
        b"dev-paid-",
        b"dev-paid-a b",
        b"dev-paid-\n",
        b"dev-paid\n",
        b"dev-paid-" + b"x" * 49,
    ):
        with pytest.raises(NotAuthenticated, match=r"dev-paid or dev-free, and for /metrics and /load dev-operator$"):
            keys.find(wrong)


@pytest.mark.parametrize("order", [("free", "free-2"), ("free-2", "free")])
def test_a_tier_whose_name_begins_as_anothers_has_its_own_tenants(order: tuple[str, str]) -> None:
    keys = DevelopmentKeys(tuple(map(TierConfig, order)))
    assert [keys.find(name).tier for name in (b"dev-free", b"dev-free-2", b"dev-free-2-ada", b"dev-free-ada")] == [
        *("free", "free-2", "free-2", "free"),
    ]
    assert keys.find(b"dev-free").limit == NO_LIMIT


def test_whoever_makes_up_names_leaves_nothing_behind() -> None:
    keys = DevelopmentKeys(TIERS)
    before = len(keys._callers)
    for number in range(1000):
        keys.find(b"dev-free-%d" % number)
    assert len(keys._callers) == before == 3


# The door


@pytest.fixture
def door() -> Door:
    return Door(keys=DevelopmentKeys(TIERS), http=HttpConfig(max_body_bytes=1000))


PAID = {b"x-api-key": b"dev-paid"}


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({b"content-length": b"1001"}, RequestTooLarge),
        ({b"content-length": b"9" * 5000}, RequestTooLarge),
        ({b"content-encoding": b"gzip"}, InvalidRequest),
        ({b"content-encoding": b""}, InvalidRequest),
    ],
)
def test_headers_that_cannot_be_served_are_refused_to_those_with_a_key(
    door: Door, headers: dict[bytes, bytes], error: type[Exception]
) -> None:
    with pytest.raises(error):
        door.authenticate({**PAID, **headers})
    with pytest.raises(NotAuthenticated):
        door.authenticate(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"content-length": b"1000"},
        {b"content-length": b"-1"},
        {b"content-encoding": b"Identity"},
        {b"content-length": b"x"},
    ],
)
def test_headers_that_can_be_served_are_let_in(door: Door, headers: dict[bytes, bytes]) -> None:
    assert door.authenticate({**PAID, **headers}).tenant == "dev-paid"


SMALL, LARGE = {b"content-length": b"16384"}, {b"content-length": b"16385"}


def test_who_has_a_key_may_be_refused_before_its_body_is_read(door: Door) -> None:
    asked: list[str] = []

    def refuse_free(caller: Caller) -> RateLimited | None:
        asked.append(caller.tenant)
        return RateLimited("later", retry_after_s=3) if caller.tier == "free" else None

    paid, free = door.authenticate(PAID), door.authenticate({b"x-api-key": b"dev-free"})
    assert door.judge_early(free, LARGE) is None
    door.refuse_early = refuse_free
    assert door.judge_early(paid, LARGE) is None
    assert isinstance(door.judge_early(free, LARGE), RateLimited)
    assert asked == ["dev-paid", "dev-free"]


def test_it_is_asked_before_large_bodies_and_before_all_for_a_second_after_a_refusal() -> None:
    now = 100.0
    asked: list[Caller] = []

    def note(caller: Caller) -> None:
        asked.append(caller)

    door = Door(keys=DevelopmentKeys(TIERS), http=HttpConfig(), clock=lambda: now)
    caller = door.authenticate(PAID)
    door.refuse_early = note
    door.judge_early(caller, SMALL)
    door.judge_early(caller, {})
    assert asked == []
    door.judge_early(caller, LARGE)
    door.judge_early(caller, {b"transfer-encoding": b"chunked"})
    assert len(asked) == 2
    door.note_busy()
    now = 100.9
    door.judge_early(caller, SMALL)
    assert len(asked) == 3
    now = 101.0
    door.judge_early(caller, SMALL)
    assert len(asked) == 3


def test_the_operators_routes_are_for_operators(door: Door) -> None:
    door.require_operator(door.authenticate({b"x-api-key": b"dev-operator"}))
    with pytest.raises(PermissionDenied, match="operator's key: on development keys, send x-api-key: dev-operator"):
        door.require_operator(door.authenticate(PAID))
    configured = Door(keys=Keyring([key("ada", b"a")], TIERS), http=HttpConfig())
    with pytest.raises(PermissionDenied, match="`batcher keys create --operator` makes one"):
        configured.require_operator(configured.authenticate({b"x-api-key": b"a"}))


def test_ids_of_the_door_never_repeat(door: Door) -> None:
    other = Door(keys=DevelopmentKeys(TIERS), http=HttpConfig())
    draw: list[Callable[[], str]] = [door.next_id, other.next_id] * 100
    assert len({next_id() for next_id in draw}) == 200
