"""A service, whatever its mode: what the app, the server and their tests need of it."""

from typing import Protocol

from prometheus_client import CollectorRegistry

from batcher.config import HttpConfig
from batcher.errors import ConfigError
from batcher.service.conversation import Answerer
from batcher.service.front import Front
from batcher.service.run import RunsEndpoint
from batcher.service.whole import WholeAnswers
from batcher.settings import Settings


class Service(Protocol):
    """Assembled at birth, on any thread; from `start` on it belongs to the running event loop."""

    settings: Settings
    http: HttpConfig
    front: Front
    registry: CollectorRegistry

    @property
    def run(self) -> RunsEndpoint:
        """Of `POST /v1/run`."""

    @property
    def answerer(self) -> Answerer:
        """Of conversations."""

    @property
    def whole(self) -> WholeAnswers | None:
        """The short way to whole answers of conversations, where there is one."""

    async def start(self) -> None: ...

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now can be served."""

    @property
    def config_error(self) -> ConfigError | None:
        """Why it will never be ready, once that is known: this process had better end and say so."""

    @property
    def num_live(self) -> int:
        """Accepted requests that have not ended."""

    def drain(self) -> None:
        """Refuses what comes from now on; what was accepted goes on to its end."""

    async def wait_idle(self) -> None:
        """Returns when no request is live, once draining."""

    def abandon(self) -> None:
        """Ends every live request as refused."""

    async def close(self) -> None:
        """Ends what is live and whatever computes."""

    def load(self) -> dict[str, object]:
        """What a router wants to know (DESIGN D6)."""

    def describe(self) -> dict[str, object]:
        """What an operator wants to see in the log first: what serves here."""
