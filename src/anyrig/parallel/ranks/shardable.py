"""What FSDP2 does not divide among ranks, found before a module is changed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ...errors import SpreadError

_REPLICATE = "anyrig.spread(module, plan=anyrig.Replicas())"


def require_shapes(module: nn.Module) -> None:
    """Raise SpreadError if a parameter has no shape yet."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise SpreadError(
                f"{name} has no shape yet, since its layer is lazy. Call the module once with a "
                "batch before it is spread"
            )


def require_shardable(module: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Raise SpreadError, with a remedy, if FSDP2 cannot divide the parameters of a module.

    `blocks` are its layers that are gathered one at a time.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse:
            raise SpreadError(
                f"{name or 'the module'} is an {type(layer).__name__} with sparse=True, and FSDP2 "
                f"cannot reduce sparse gradients. Use sparse=False, or replicas: {_REPLICATE}"
            )
    for name, parameter in module.named_parameters():
        if not parameter.dim():
            raise SpreadError(
                f"the parameter {name} has no dimensions, and FSDP2 divides parameters along one. "
                f"Give it one element: module.{name} = torch.nn.Parameter(module.{name}.detach()."
                f"reshape(1)), or use replicas: {_REPLICATE}"
            )
    for name, buffer in module.named_buffers():
        if buffer.layout is not torch.strided:
            raise SpreadError(
                f"the buffer {name} is sparse ({buffer.layout}), but rank 0's buffers are "
                "broadcast as dense tensors. Keep it in an attribute that is not a buffer, the "
                "same on every rank, or make it dense: buffer.to_dense()"
            )
    gathered: set[int] = set()
    for owner in [*blocks, module]:
        dtypes: dict[torch.dtype, str] = {}
        for name, parameter in owner.named_parameters():
            if id(parameter) not in gathered:
                dtypes.setdefault(parameter.dtype, name)
            gathered.add(id(parameter))
        if len(dtypes) > 1:
            found = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
            raise SpreadError(
                f"FSDP2 gathers the parameters of {type(owner).__name__} together, but they differ "
                f"in dtype: {found}. Convert the module to one dtype, gather the layers of another "
                "dtype by themselves with plan=Shards(blocks=[…, their class]), or use "
                f"replicas: {_REPLICATE}"
            )
