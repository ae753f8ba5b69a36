"""Continuous mode, assembled: callers -> tokenizer -> replica."""

import time

from backends.models import create_model
from batcher.core.admission.gate import GateStatistics
from batcher.errors import ConfigError
from batcher.service.assembly import Entrance
from batcher.service.auth import Caller
from batcher.service.callers import OnEvent, OnUsage
from batcher.service.conversation import Conversation, Prepared
from batcher.service.exposition import create_registry
from batcher.service.generation import GenerationRequest
from batcher.service.generation_metrics import replica_metrics
from batcher.service.prompts import Prompter
from batcher.service.replica import Replica
from batcher.service.run import NoRunEndpoint
from batcher.service.start_gate import start_gate_of
from batcher.settings import Settings


class ContinuousService:
    """A Service, and its own Answerer. `replica` exists from `start` on, since it belongs to the running event loop."""

    replica: Replica

    def __init__(self, settings: Settings) -> None:
        """Reads the tokenizer and no weights. Raises ConfigError for a model that cannot be, or not with these settings."""
        self.settings = settings
        self.http = settings.http()
        self.model = create_model(
            settings.model, dtype=settings.dtype, device=settings.device, settings=settings.model_settings()
        )
        info = self.model.info
        self.model_id = info.id
        self.config = settings.replica(
            context_len=info.context_len, kv_bytes_per_token=info.kv_bytes_per_token, kv_bytes=info.kv_bytes
        )
        self._start_gate = start_gate_of(settings.tiers_in_force, self.config)
        self._entrance = Entrance(
            settings,
            models=[self.model_id],
            refuse_early=lambda caller: self.replica.refuse_early(caller),
            limit_factor=lambda tier: self.replica.limit_factor(tier),
        )
        self.front = self._entrance.front
        self.run = NoRunEndpoint(self.front)
        self.whole = None
        self.answerer = self
        self.context_len: int | None = self.config.max_model_len
        self.prompter = Prompter(self.model.tokenizer, context_len=self.config.max_model_len)
        self.registry = create_registry(
            lambda: replica_metrics(self.replica, self.model_id), self._entrance.metrics(self._admission)
        )

    # Requests.

    async def prepare(self, conversation: Conversation, *, room: float) -> Prepared:
        deadline_at = time.monotonic() + self.http.request_timeout_s
        prompt, max_tokens = await self.prompter.prepare(conversation, room=room)
        return Prepared(
            conversation=conversation,
            prompt=prompt,
            num_input_tokens=len(prompt),
            max_tokens=max_tokens,
            deadline_at=deadline_at,
        )

    async def count(self, conversation: Conversation) -> int:
        return await self.prompter.count(conversation)

    def submit(self, caller: Caller, prepared: Prepared, on_event: OnEvent) -> int:
        conversation, prompt = prepared.conversation, prepared.prompt
        assert isinstance(prompt, list)
        request = GenerationRequest(
            tenant=caller.tenant,
            tier=caller.tier,
            prompt=prompt,
            max_tokens=prepared.max_tokens,
            sampling=conversation.sampling,
            stop_sequences=conversation.stop_sequences,
            deadline_at=prepared.deadline_at,
            ignores_stop=conversation.ignores_stop,
        )
        return self.replica.submit(request, on_event, key_id=caller.key_id)

    def cancel(self, number: int, on_usage: OnUsage) -> None:
        self.replica.cancel(number, on_usage)

    # Life.

    async def start(self) -> None:
        await self._entrance.start()
        self.replica = Replica(self.model, self.config, start_gate=self._start_gate)
        self.replica.start()

    @property
    def is_ready(self) -> bool:
        return self.replica.is_ready

    @property
    def config_error(self) -> ConfigError | None:
        return self.replica.config_error

    @property
    def num_live(self) -> int:
        return self.replica.num_live

    def drain(self) -> None:
        self.replica.drain()

    async def wait_idle(self) -> None:
        await self.replica.wait_idle()

    def abandon(self) -> None:
        self.replica.abandon()

    async def close(self) -> None:
        self.prompter.close()
        await self.replica.close()
        await self._entrance.close()

    # What it tells.

    def _admission(self) -> tuple[GateStatistics, ...]:
        gate = self._start_gate
        return gate.gate.statistics(now=time.monotonic()) if gate is not None else ()

    def load(self) -> dict[str, object]:
        return self.replica.load()

    def describe(self) -> dict[str, object]:
        config = self.config
        return {
            "mode": self.settings.mode,
            "model": self.model_id,
            "policy": config.policy,
            "kv": config.kv,
            "kv_blocks": config.num_blocks,
            "max_num_seqs": config.max_num_seqs,
            "max_model_len": config.max_model_len,
        }
