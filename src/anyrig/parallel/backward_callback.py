"""Call a function at the end of the current backward pass."""

from __future__ import annotations

from typing import Any

import torch


def queue_callback(callback: Any) -> None:
    """Call a function when the current backward pass has computed all gradients.

    Callbacks run in the order of queueing, so a callback that is queued when the pass begins runs
    before DDP and FSDP2 wait for their last collectives. PyTorch's method for this is not public,
    but DDP and FSDP2 call it from Python, too.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)
