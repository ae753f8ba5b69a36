"""What `batcher serve` can be told, and by which ways."""

from batcher.settings.fields import Settings
from batcher.settings.sources import CONFIG_VARIABLE, load_settings

__all__ = ["CONFIG_VARIABLE", "Settings", "load_settings"]
