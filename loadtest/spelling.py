"""The plan that a command line spells, or what is wrong with it, in one line."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from batcher.config.wording import why_unread
from batcher.errors import ConfigError
from batcher.sim.lengths import parse_lengths
from batcher.sim.trace import CONTEXT_TOKENS, GENERATED_TOKENS
from batcher.sim.workload import Arrivals, Mix, Sender, parse_arrivals
from loadtest.messages import Messages, messages_target
from loadtest.options import Spelled
from loadtest.plan import Plan, parse_mix, parse_senders
from loadtest.target import Check, Target, run_target

ENDPOINTS = ("run", "messages")

DURATION_S = 30.0
LONGEST_S = 3600.0
"""A closed loop of so many requests may take this long, unless it is told."""
TIMEOUT_S, MESSAGES_TIMEOUT_S = 10.0, 120.0
LENGTH = "128"
RATE, MESSAGES_RATE = 100.0, 1.0
SLO_S = 0.5
DEFAULT_MIX = "paid=0.2,free=0.8"
ONE_KEY = Mix((Sender("", "all", 1.0),))
"""Of a run whose headers are the same for all requests, and nobody has said otherwise."""
SLO_TTFT_S, SLO_TPOT_S = 1.0, 0.05
"""The targets of SPEC S3."""

_Value = TypeVar("_Value")

_OF_MESSAGES = (
    "model", "prompt_tokens", "output_tokens", "max_prompt_tokens", "token_unit", "shared_prefix_tokens", "prefix_groups",
    "turns", "think_time_s", "temperature", "top_p", "top_k", "stop_sequences", "is_streamed", "slo_ttft_s", "slo_tpot_s",
)  # fmt: skip
_OF_INPUTS = ("check", "body", "output_field", "id_field")


def make_plan(spelled: Spelled) -> Plan:
    """The plan that was spelled. Raises `ConfigError` for what contradicts itself or cannot work."""
    if spelled.endpoint not in ENDPOINTS:
        raise ConfigError(f"unknown endpoint {spelled.endpoint!r}; there is {', '.join(ENDPOINTS)}, or give a --body")
    is_messages = spelled.endpoint == "messages"
    _refuse(spelled, _OF_INPUTS if is_messages else _OF_MESSAGES, f"--endpoint {spelled.endpoint}")
    target = _make_messages_target(spelled) if is_messages else _make_target(spelled)
    mix = _make_mix(spelled, target)
    duration_s = spelled.duration_s
    if duration_s is None:
        duration_s = DURATION_S if spelled.num_requests is None else LONGEST_S
    timeout_s, slo_s = spelled.timeout_s, spelled.slo_s
    return Plan(
        target=target,
        arrivals=None if spelled.concurrency is not None else _make_arrivals(spelled, mix, duration_s),
        arrivals_name=_name_arrivals(spelled),
        messages=_make_messages(spelled) if is_messages else None,
        concurrency=spelled.concurrency,
        num_requests=spelled.num_requests,
        mix=mix,
        duration_s=duration_s,
        seed=spelled.seed,
        input_size=spelled.input_size,
        poison_share=spelled.poison_share,
        poison_prefix=spelled.poison_prefix,
        timeout_s=(MESSAGES_TIMEOUT_S if is_messages else TIMEOUT_S) if timeout_s is None else timeout_s,
        slo_s=SLO_S if slo_s is None and not is_messages else slo_s,
        slo_ttft_s=_default(spelled.slo_ttft_s, SLO_TTFT_S) if is_messages else None,
        slo_tpot_s=_default(spelled.slo_tpot_s, SLO_TPOT_S) if is_messages else None,
        warm_connections=spelled.connections,
        max_connections=spelled.max_connections,
    )


def _make_mix(spelled: Spelled, target: Target) -> Mix:
    if spelled.keys and (spelled.mix is not None or spelled.rate is not None):
        raise ConfigError("--key brings its own rate and tier: leave out --mix and --rate")
    if spelled.keys:
        return parse_senders(spelled.keys)
    if spelled.mix is None and not target.sends_keys:
        return ONE_KEY
    return parse_mix(spelled.mix or DEFAULT_MIX)


def _make_arrivals(spelled: Spelled, mix: Mix, duration_s: float) -> Arrivals:
    arrivals = spelled.arrivals or "poisson"
    rate = mix.total if spelled.keys else spelled.rate
    if rate is None and arrivals.partition(":")[0] not in ("steps", "trace"):
        rate = MESSAGES_RATE if spelled.endpoint == "messages" else RATE
    return parse_arrivals(arrivals, rate=rate, duration_s=duration_s, speed_up=spelled.speed_up)


def _name_arrivals(spelled: Spelled) -> str:
    if spelled.concurrency is None:
        return spelled.arrivals or "poisson"
    if spelled.arrivals is not None or spelled.rate is not None:
        raise ConfigError("--concurrency is a closed loop, where the answers decide the rate: leave out --rate and --arrivals")
    return f"closed loop of {spelled.concurrency}"


def _make_messages(spelled: Spelled) -> Messages:
    """What was not said is as `Messages` has it."""
    said: dict[str, Any] = {
        "model": spelled.model,
        "max_prompt_tokens": spelled.max_prompt_tokens,
        "unit": spelled.token_unit,
        "shared_prefix_tokens": spelled.shared_prefix_tokens,
        "prefix_groups": spelled.prefix_groups,
        "turns": spelled.turns,
        "think_time_s": spelled.think_time_s,
        "temperature": spelled.temperature,
        "top_p": spelled.top_p,
        "top_k": spelled.top_k,
        "stop_sequences": tuple(spelled.stop_sequences) if spelled.stop_sequences else None,
        "is_streamed": spelled.is_streamed,
    }
    return Messages(
        prompt_tokens=parse_lengths(spelled.prompt_tokens or LENGTH, column=CONTEXT_TOKENS),
        output_tokens=parse_lengths(spelled.output_tokens or LENGTH, column=GENERATED_TOKENS),
        **{name: value for name, value in said.items() if value is not None},
    )


def _make_messages_target(spelled: Spelled) -> Target:
    headers = [_parse_header(header) for header in spelled.headers or ()]
    target = messages_target(spelled.url, path=spelled.path or "/v1/messages", headers=headers)
    return msgspec.structs.replace(target, is_insecure=spelled.is_insecure)


def _make_target(spelled: Spelled) -> Target:
    headers = tuple(_parse_header(header) for header in spelled.headers or ())
    check = spelled.check or Check.ECHO
    if spelled.body is None:
        preset = run_target(spelled.url, path=spelled.path or "/v1/run", check=check)
        target = msgspec.structs.replace(preset, headers=preset.headers + headers)
    else:
        url = spelled.url if spelled.path is None else spelled.url.rstrip("/") + "/" + spelled.path.lstrip("/")
        target = Target(url=url, body=_read_body(spelled.body), headers=headers, check=check)
    return msgspec.structs.replace(
        target,
        output_field=_default(spelled.output_field, target.output_field),
        id_field=_default(spelled.id_field, target.id_field),
        is_insecure=spelled.is_insecure,
    )


def _refuse(spelled: Spelled, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(spelled, name) is not None:
            option = {"stop_sequences": "stop", "is_streamed": "stream"}.get(name, name.removesuffix("_s"))
            raise ConfigError(f"--{option.replace('_', '-')} has no meaning with {why}")


def _default(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigError(f"a header is written 'name: value', not {text!r}")
    return name.strip(), value.strip()


def _read_body(body: str) -> str:
    if not body.startswith("@"):
        return body
    try:
        return Path(body[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the body from {body[1:]}: {why_unread(error)}") from error
