"""Sending tensors from one device to another without holding up what either computes.

::

    current stream of the source  ─F(0,1)─┬─F(0,2)─┬─F(0,3)──▶
    leaving, one for each target          └─copy─┐ └─copy─┐
    arriving, one for each source                └▶       └▶
    current stream of the target   ─F(1,0)────────┴F(1,1)──┴F(1,2)──▶

The target waits only when it takes the tensor, so work that is queued between sending and taking
is not held up. Each pair of devices has its own streams, so that an activation that is not ready
yet does not delay a gradient that arrives from another device.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....transfer.arguments import move_object
from ....transfer.pin import is_plain_host_tensor, pinning_helps
from ....transfer.streams import copy_stream, using
from ....transfer.tree import ATOM_TYPES, map_leaves


class Parcel:
    """A tensor on its way to a device.

    Attributes:
        tensor: the tensor on the target device. Its values may be read only after `take`.
    """

    def __init__(self, tensor: Tensor, arrived: torch.Event | None = None) -> None:
        self.tensor = tensor
        self._arrived = arrived

    def take(self) -> Tensor:
        """Return the tensor, and make the current stream of its device wait for the copy."""
        if self._arrived is not None:
            reader = torch.accelerator.current_stream(self.tensor.device)
            reader.wait_event(self._arrived)
            # The memory belongs to the pool of the arriving stream.
            record_reader(self.tensor, reader)
        return self.tensor


def send(tensor: Tensor, target: torch.device) -> Parcel:
    """Start to copy a tensor to a device; on the same device the tensor itself is passed on."""
    source, tensor = tensor.device, tensor.detach()
    if source == target:
        return Parcel(tensor)
    if target.type == "cpu" or "meta" in (source.type, target.type):
        return Parcel(tensor.to(target))  # the host waits, as it could read the memory too early
    if source.type == "cpu":
        return _send_from_host(tensor, target)
    if copy_stream(source, "to peer") is None:
        return Parcel(tensor.to(target, non_blocking=True))
    leaving, arriving = link_streams(source, target)
    leaving.wait_event(torch.accelerator.current_stream(source).record_event())
    with using(leaving, arriving):
        # PyTorch copies on the source's current stream, and makes the target's current stream wait.
        copied = tensor.to(target, non_blocking=True)
        arrived = arriving.record_event()
    record_reader(tensor, leaving)
    return Parcel(copied, arrived)


def send_all(tree: Any, target: torch.device) -> Any:
    """Return a value with a `Parcel` to `target` in the place of each tensor."""
    return map_leaves(
        tree,
        lambda leaf, _: (
            send(leaf, target) if isinstance(leaf, Tensor) else send_other(leaf, target)
        ),
    )


def send_other(value: Any, target: torch.device) -> Any:
    """Return a leaf that is not a tensor as the stage on `target` needs it.

    A device among the values of a stage is that of its tensors, such as ``h.device``. The stage
    that reads it has the tensors on its own device, so it gets that one. An object that hides
    tensors is moved by its method `to`. Raise MoveError if it has none.
    """
    if isinstance(value, torch.device):
        return target if value.type == target.type else value
    if type(value) in ATOM_TYPES:
        return value
    return move_object(value, target, lambda: "an argument")


@cache
def link_streams(source: torch.device, target: torch.device) -> tuple[torch.Stream, torch.Stream]:
    """Return the streams of both devices for copies in this direction, shared by all models."""
    return torch.Stream(source), torch.Stream(target)


def record_reader(tensor: Tensor, stream: torch.Stream) -> None:
    """Keep the memory of a tensor from being reused before `stream` has finished with it."""
    # Sparse and nested tensors consist of several tensors.
    if tensor.layout is torch.strided and not tensor.is_nested:
        tensor.record_stream(stream)


def _send_from_host(tensor: Tensor, target: torch.device) -> Parcel:
    stream = copy_stream(target, "to device")
    if stream is None or not is_plain_host_tensor(tensor):
        return Parcel(tensor.to(target, non_blocking=True))
    host = tensor.pin_memory() if pinning_helps(target.type) else tensor
    with using(stream):
        copied = host.to(target, non_blocking=True)
        return Parcel(copied, stream.record_event())
