"""Continuous mode, assembled: callers -> tokenizer -> replica."""

import time

from backends.models import create_model
from batcher.errors import ConfigError
from batcher.service.auth import Caller, keys_of
from batcher.service.callers import OnEvent
from batcher.service.conversation import Conversation
from batcher.service.door import Door
from batcher.service.generation import GenerationRequest
from batcher.service.generation_metrics import create_registry
from batcher.service.prompts import Prompter
from batcher.service.replica import Replica
from batcher.service.run import NoRunEndpoint
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
        self.door = Door(keys=keys_of(settings.keys, self.config.tiers), http=self.http)
        self.run = NoRunEndpoint(self.door)
        self.answerer = self
        self.prompter = Prompter(self.model.tokenizer, context_len=self.config.max_model_len)
        self.registry = create_registry(lambda: self.replica, self.door)

    # Requests.

    async def ask(self, caller: Caller, conversation: Conversation, on_event: OnEvent) -> int:
        # The time to start in counts from here: a client does not care what it waits for.
        deadline_at = time.monotonic() + self.http.request_timeout_s
        request = GenerationRequest(
            tenant=caller.tenant,
            tier=caller.tier,
            prompt=await self.prompter.encode(conversation),
            max_tokens=conversation.max_tokens,
            sampling=conversation.sampling,
            stop_sequences=conversation.stop_sequences,
            deadline_at=deadline_at,
        )
        return self.replica.submit(request, on_event)

    def cancel(self, number: int) -> None:
        self.replica.cancel(number)

    # Life.

    def start(self) -> None:
        self.replica = Replica(self.model, self.config)
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

    # What it tells.

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
