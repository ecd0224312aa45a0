"""Copy a tensor to another device, in order or on a separate stream, for use at once."""

from __future__ import annotations

import torch

from .pin import is_plain_host_tensor, pin_tensor, pinning_helps
from .streams import copy_stream, using


def copy_in_order(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `tensor` on `device`, copied on the current streams.

    The host waits only for a copy to the CPU, which could otherwise be read before it is written.
    """
    # Host tensors first: `torch.device.type` builds a new string, which takes several microseconds.
    return tensor.to(device, non_blocking=tensor.is_cpu or device.type != "cpu")


def copy_beside(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `tensor` on `device`, copied concurrently with what the devices compute.

    A tensor that is already on `device` is returned itself.

    ::

        from the host    copy stream of the target   ──copy──┐
                         current stream of the target        └▶ waits, then uses it
        from a device    current stream of the source ─┬─▶ goes on with other work
                         its "to peer" stream          └──copy──┐
                         current stream of the target           └▶ waits, then uses it

    Host memory is pinned first if that makes the copy faster. The host waits only for a copy to the
    CPU, which could otherwise be read before it is written.
    """
    source = tensor.device
    if source == device:
        return tensor
    if device.type == "cpu" or "meta" in (source.type, device.type):
        return tensor.to(device)
    if source.type == "cpu":
        return _from_host(tensor, device)
    stream = copy_stream(source, "to peer")
    if stream is None:
        return tensor.to(device, non_blocking=True)
    stream.wait_event(torch.accelerator.current_stream(source).record_event())
    with using(stream):
        # PyTorch runs the copy on the source's current stream, here the separate one, and makes the
        # target's current stream wait for it.
        copied = tensor.to(device, non_blocking=True)
    _keep_for(tensor, stream)
    return copied


def _from_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    stream = copy_stream(device, "to device")
    if stream is None or not is_plain_host_tensor(tensor):
        return tensor.to(device, non_blocking=True)
    host = pin_tensor(tensor) if pinning_helps(device.type) else tensor
    consumer = torch.accelerator.current_stream(device)
    with using(stream):
        copied = host.to(device, non_blocking=True)
        done = stream.record_event()
    consumer.wait_event(done)
    _keep_for(copied, consumer)
    return copied


def _keep_for(tensor: torch.Tensor, stream: torch.Stream) -> None:
    # The memory belongs to another stream's pool, and must not be reused there before this stream
    # has finished with it. Sparse and nested tensors consist of several tensors.
    if tensor.layout is torch.strided and not tensor.is_nested:
        tensor.record_stream(stream)
