"""Default device and dtype for a while: what `torch.set_default_tensor_type` was used for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from .current import use_device
from .place import Place, as_torch_device

if TYPE_CHECKING:
    import torch


@contextmanager
def defaults(
    device: Place | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[None]:
    """Within the block, new tensors are made on `device` and, where they are floating point, with
    `dtype`; after it both are as before, also when it is left by an exception. It decorates a
    function too.

    ::

        with anyrig.devices.defaults(device="cuda:1", dtype=torch.float64):
            model = Net()                       # made on cuda:1, in double precision

    Raises:
        DeviceTextError: the text or the number names no device here.
        TypeError: PyTorch takes no such dtype as a default (it must be floating point).
    """
    import torch

    with ExitStack() as stack:
        if dtype is not None:
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            stack.callback(torch.set_default_dtype, before)
        if device is not None:
            stack.enter_context(use_device(device))
            stack.enter_context(as_torch_device(device))
        yield
