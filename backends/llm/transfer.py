"""Numbers from the host to the device without ever waiting for it.

A copy from ordinary memory makes the host wait until the device has done all that was queued before, and then no step could be
prepared while another runs. A copy from page-locked memory only queues. torch's allocator for such memory reuses a buffer once
the copies out of it are done, so nobody here has to keep it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: "NDArray[np.int64 | np.float64]", device: torch.device) -> Tensor:
    """The array on `device`; on a CPU it is the same memory, so that the caller must not write to it again."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
