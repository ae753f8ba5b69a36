"""batcher: the service between API callers and GPUs that decides which requests run together.

Only the vocabulary is public here; importing it loads no web framework, no event loop and no torch.
"""

from batcher.errors import BatcherError
from batcher.types import BatchReason, Outcome, Request

__all__ = ["BatchReason", "BatcherError", "Outcome", "Request"]
__version__ = "0.1.0"
