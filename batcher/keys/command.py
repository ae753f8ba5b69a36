"""`batcher keys`: makes API keys, lists, rotates and revokes them.

A server that serves with the file (`--keys-file`) obeys it within about a second, without a restart. A key is shown once, when
it is made; nobody can read it from the file. One that cannot be shown is taken back: to show it before it is in the file was
refused, since a disk that is full would then leave a script with a key that opens nothing.
"""

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from batcher.config import TierConfig
from batcher.errors import ConfigError, Unprinted
from batcher.keys.file import Keys, StoredKey, change_keys, read_keys
from batcher.printing import printing, require_printable
from batcher.settings import CONFIG_VARIABLE, load_settings

PREFIX = "sk-batcher-"
"""So that a key which lies about is known for what it is, by people and by scanners for secrets."""

_SECRET_BYTES = 32
"""Of the system's randomness: beyond guessing, so that a plain digest of it hides it."""

keys = typer.Typer(name="keys", help="API keys in a file: create, list, rotate, revoke.", no_args_is_help=True)


def _path(text: str) -> Path:
    """Raises ConfigError for an empty one, which would be the current folder."""
    if not text:
        raise ConfigError("--file is ''; it must be a path")
    return Path(text)


_FILE = "The keys file, TOML or (by its ending) JSON; by itself keys_file of the settings."
_CONFIG = "The TOML file that `batcher serve` reads: tiers and keys_file are taken from it."
File = Annotated[Path | None, typer.Option("--file", parser=_path, metavar="PATH", help=_FILE)]
Config = Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help=_CONFIG)]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="As `batcher keys list` shows it.")]


@keys.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose it is: 1 to 64 of A-Za-z0-9._-")],
    tier: Annotated[str, typer.Option(help="Where its requests queue.")],
    file: File = None,
    config: Config = None,
    operator: Annotated[bool, typer.Option("--operator", help="It also opens the operator's routes.")] = False,
    requests_per_minute: Annotated[int | None, typer.Option(help="Its own limit, in place of its tier's.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Likewise, of prompts and answers together.")] = None,
) -> None:
    """Make a key and print it, this once. The file is made if there is none."""
    require_printable()
    file, tiers = _told(file, config)
    if tier not in (known.name for known in tiers):
        names = " or ".join(known.name for known in tiers)
        raise ConfigError(f"tier is {tier!r}; it must be {names}, or one that the file of --config has")
    secret, digest = _draw()
    made = StoredKey(
        tenant=tenant,
        tier=tier,
        sha256=digest,
        id=f"key_{secrets.token_hex(6)}",
        is_operator=operator,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        created_at=_now(),
    )
    change_keys(file, lambda before: (*before, made), creates=True)
    _show(secret, made, file=file, before=())


@keys.command(name="list")
def list_keys(file: File = None, config: Config = None) -> None:
    """Show who has which key, and no secret."""
    rows: list[tuple[str, ...]] = [("id", "tenant", "tier", "operator", "requests/min", "tokens/min", "created", "rotated")]
    rows += [
        (
            *(key.key_id, key.tenant, key.tier, "yes" if key.is_operator else "no"),
            *("tier's" if limit is None else str(limit) for limit in (key.requests_per_minute, key.tokens_per_minute)),
            *("-" if at is None else at.strftime("%Y-%m-%d %H:%M") for at in (key.created_at, key.rotated_at)),
        )
        for key in read_keys(_told(file, config)[0])
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    with printing():
        for row in rows:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
def revoke(key_id: KeyId, file: File = None, config: Config = None) -> None:
    """Take a key out of the file: what comes with it from then on is refused, what runs goes on."""
    file, _ = _told(file, config)
    change_keys(file, lambda before: _replaced(before, key_id, lambda key: ()))
    _tell(f"{key_id} is revoked")


@keys.command()
def rotate(key_id: KeyId, file: File = None, config: Config = None) -> None:
    """Give a key a new secret and print it, this once. The old one stops at once; for an overlap create a second key first."""
    require_printable()
    file, _ = _told(file, config)
    secret, digest = _draw()
    now = _now()
    changed: list[StoredKey] = []

    def change(key: StoredKey) -> Keys:
        rotated = msgspec.structs.replace(key, sha256=digest, id=key.key_id, rotated_at=now)
        changed.extend((key, rotated))
        return (rotated,)

    change_keys(file, lambda before: _replaced(before, key_id, change))
    before, after = changed
    _show(secret, after, file=file, before=(before,))


def _told(file: Path | None, config: Path | None) -> tuple[Path, tuple[TierConfig, ...]]:
    """The keys file and the tiers, by the same ways as `batcher serve` learns of them. Raises ConfigError."""
    flags: dict[str, object] = {} if file is None else {"keys_file": file}
    settings = load_settings(file=config, environment=os.environ, flags=flags)
    if settings.keys_file is None:
        raise ConfigError("which keys file? Say so by --file, BATCHER_KEYS_FILE or keys_file in the file of --config")
    return settings.keys_file, settings.tiers


def _replaced(before: Keys, key_id: str, change: Callable[[StoredKey], Keys]) -> Keys:
    """With what `change` makes of the one key. Raises ConfigError if there is none of this id."""
    if all(key.key_id != key_id for key in before):
        raise ConfigError(f"there is no key {key_id!r} in the keys file; `batcher keys list` shows all")
    return tuple(after for key in before for after in (change(key) if key.key_id == key_id else (key,)))


def _draw() -> tuple[str, str]:
    """A new key, and its digest."""
    secret = PREFIX + secrets.token_hex(_SECRET_BYTES)
    return secret, hashlib.sha256(secret.encode()).hexdigest()


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _show(secret: str, key: StoredKey, *, file: Path, before: Keys) -> None:
    """The key alone on standard output, for scripts; what to know of it beside.

    Raises Unprinted, and then the file has `before` in its place again: nobody has what could not be shown.
    """
    try:
        with printing():
            typer.echo(secret)
    except Unprinted as error:
        try:
            change_keys(file, lambda now: _taken_back(now, key, before))
        except ConfigError as failure:
            raise Unprinted(
                f"{error}; nobody has the secret of {key.key_id}, which stays in the keys file, as it could not be taken back: "
                f"{failure}; `batcher keys rotate {key.key_id}` gives it another"
            ) from error
        raise Unprinted(f"{error}; the key could not be shown, and so the change of the keys file is undone") from error
    _tell(f"{key.key_id} of {key.tenant} in tier {key.tier}; the key itself is shown this once")


def _taken_back(now: Keys, key: StoredKey, before: Keys) -> Keys:
    """Another command may have given it another secret meanwhile, and shown that: then it stays."""
    return tuple(kept for each in now for kept in (before if each.sha256 == key.sha256 else (each,)))


def _tell(words: str) -> None:
    """On standard error. What was done is done, also where nobody can be told."""
    with suppress(OSError):
        typer.echo(words, err=True)
