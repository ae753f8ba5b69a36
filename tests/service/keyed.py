"""Keys for the tests of the keys file: in it, and in the settings."""

import hashlib
from collections.abc import Callable

from batcher.config import KeyConfig
from batcher.keys.file import Keys, StoredKey


def key(tenant: str, tier: str = "paid") -> StoredKey:
    """Its secret is sk-TENANT."""
    return StoredKey(tenant=tenant, tier=tier, sha256=hashlib.sha256(f"sk-{tenant}".encode()).hexdigest(), id=f"key_{tenant}")


def configured(tenant: str) -> KeyConfig:
    return KeyConfig(tenant, "paid", key(tenant).sha256)


def put(*keys: StoredKey) -> Callable[[Keys], Keys]:
    return lambda before: keys
