"""Calling something at the end of the backward pass that is under way."""

from __future__ import annotations

from typing import Any

import torch


def queue_callback(callback: Any) -> None:
    """Call something when the backward pass that is under way has computed all gradients.

    In the order of queueing: what is queued when it begins comes before DDP's and FSDP2's waiting
    for the last collectives. Not public; PyTorch's own DDP and FSDP2 use it from Python.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(callback)
