"""One tensor to another device, on a stream of its own, safe to use as soon as it is returned."""

from __future__ import annotations

import torch

from .pin import is_plain_host_tensor, pinning_helps
from .streams import copy_stream, using


def copy_beside(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `tensor` on `device`, itself if it is there, copied beside what the devices compute.

    ::

        from the host    copy stream of the target   ──copy──┐
                         current stream of the target        └▶ waits, then uses it
        from a device    current stream of the source ─┬─▶ goes on with other work
                         "to peer" stream of it        └──copy──┐
                         current stream of the target           └▶ waits, then uses it

    Host memory is pinned on the way if that helps. The host does not wait, except for a copy to
    the CPU, whose memory could be read before it is written.
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
        # PyTorch runs it on the source's current stream, which is now the one beside, and has the
        # target's current stream wait for it.
        copied = tensor.to(device, non_blocking=True)
    _keep_for(tensor, stream)
    return copied


def _from_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    stream = copy_stream(device, "to device")
    if stream is None or not is_plain_host_tensor(tensor):
        return tensor.to(device, non_blocking=True)
    host = tensor.pin_memory() if pinning_helps(device.type) else tensor
    consumer = torch.accelerator.current_stream(device)
    with using(stream):
        copied = host.to(device, non_blocking=True)
        done = stream.record_event()
    consumer.wait_event(done)
    _keep_for(copied, consumer)
    return copied


def _keep_for(tensor: torch.Tensor, stream: torch.Stream) -> None:
    # Its memory belongs to another stream's pool, and must not be used again there before this
    # stream has come past its last use here. Sparse and nested tensors are several tensors.
    if tensor.layout is torch.strided and not tensor.is_nested:
        tensor.record_stream(stream)
