"""What the blocks of a chain compute for one micro-batch, counted without computing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from ....transfer.tree import map_leaves
from .chain import Chain
from .slots import Slot, list_slots, replaced, tensors_in
from .stage import tensors_of


@dataclass(frozen=True)
class BlockWork:
    """The work of one block for one micro-batch.

    Attributes:
        forward_flops: multiplications and additions of products and convolutions.
        forward_bytes: what the operators of the forward pass read and write.
        activation_bytes: what is held until the backward pass.
        output_bytes: the values that later blocks or the result read from the block.
        operators: how many operators the forward pass calls, without views.
    """

    forward_flops: float
    forward_bytes: float
    activation_bytes: int
    output_bytes: int
    operators: int = 0


def count_work(chain: Chain, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[BlockWork]:
    """Return the work of each block for a call, computed on the meta device.

    Raises:
        Exception: whatever the module raises, for example because it reads values.
    """
    from torch.utils.flop_counter import FlopCounterMode  # reports if Triton is missing

    slots = list_slots(block.module for block in chain.blocks)
    stand_ins = _stand_ins(slots)
    state = {tensor.untyped_storage()._cdata for _, tensor in stand_ins}
    values = map_leaves(chain.bind(args, kwargs), lambda leaf, _: _to_meta(leaf))
    work = []
    with replaced(stand_ins), torch.enable_grad():
        for number, block in enumerate(chain.blocks):
            flops, moved, saved = FlopCounterMode(display=False), _CountBytes(), _Saved(state)
            with flops, moved, saved_tensors_hooks(saved.note, lambda tensor: tensor):
                values.update(block.compute(values))
            crossing = chain.writes_of(number, number + 1)
            output_bytes = sum(_size(one) for name in crossing for one in tensors_of(values[name]))
            work.append(
                BlockWork(
                    flops.get_total_flops(), moved.total, saved.total, output_bytes, moved.operators
                )
            )
    return work


def _stand_ins(slots: Sequence[Slot]) -> list[tuple[Slot, Tensor]]:
    made: dict[int, Tensor] = {}
    pairs = []
    for slot, tensor in tensors_in(slots):
        if id(tensor) not in made:
            meta = torch.empty_like(tensor, device="meta")
            learns = tensor.requires_grad
            made[id(tensor)] = nn.Parameter(meta) if learns else meta
        pairs.append((slot, made[id(tensor)]))
    return pairs


def _to_meta(leaf: Any) -> Any:
    return leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _CountBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operators read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = self.operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.total += sum(map(_size, tensors_of([list(args), result])))
            self.operators += 1
        return result


class _Saved:
    """Counts the storages that a forward pass saves for its backward pass, each once."""

    def __init__(self, seen: set[int]) -> None:
        self._seen = seen  # also of other blocks, and of parameters
        self._alive: list[Tensor] = []  # so that no address is used again
        self.total = 0

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._alive.append(tensor)
            self.total += storage.nbytes()
        return tensor
