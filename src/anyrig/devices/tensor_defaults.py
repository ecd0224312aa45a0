"""A temporary default device and dtype, in place of `torch.set_default_tensor_type`."""

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
    """Set the default device and floating-point dtype of new tensors within a block.

    The previous defaults are restored at the end, even after an exception. Can be used as a
    decorator.

    ::

        with anyrig.devices.defaults(device="cuda:1", dtype=torch.float64):
            model = Net()                       # made on cuda:1, in double precision

    Raises:
        DeviceTextError: the string or index names no device of this machine.
        TypeError: `dtype` is not a floating-point dtype that PyTorch accepts as a default.
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
