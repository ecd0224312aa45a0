"""Copy-on-write storages (`torch._lazy_clone`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from anyrig.virtual import clock

DEVICE = torch.device("cuda", 1)


def is_shared(*tensors: Tensor) -> list[bool]:
    return [torch._C._is_cow_tensor(tensor) for tensor in tensors]


def test_a_lazy_clone_takes_no_memory_until_it_is_written_to() -> None:
    tensor = torch.arange(1000.0, device=DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)
    clone = tensor._lazy_clone()
    assert torch.equal(tensor + clone, 2 * tensor)
    assert is_shared(tensor, clone) == [True, True]
    assert torch._C._data_address(tensor) == torch._C._data_address(clone)
    assert torch.cuda.memory_allocated(DEVICE) == before
    clone.add_(1)
    assert is_shared(tensor, clone) == [True, False]
    assert torch.cuda.memory_allocated(DEVICE) == before + 4096
    assert (clone - tensor).cpu().eq(1).all()


def test_the_last_clone_keeps_the_memory() -> None:
    tensor = torch.arange(4.0, device=DEVICE)
    address = torch._C._data_address(tensor)
    clone = tensor._lazy_clone()
    tensor.view(2, 2).mul_(3)
    clone.mul_(5)
    assert is_shared(tensor, clone) == [False, False]
    assert torch._C._data_address(clone) == address != torch._C._data_address(tensor)
    assert tensor.tolist() == [0, 3, 6, 9]
    assert clone.tolist() == [0, 5, 10, 15]


WRITES: dict[str, Callable[[Tensor], object]] = {
    "copy_": lambda tensor: tensor.copy_(torch.full((4,), 7.0)),
    "fill_": lambda tensor: tensor.fill_(7),
    "uniform_": lambda tensor: tensor.uniform_(7, 7.5),
    "bernoulli_": lambda tensor: tensor.bernoulli_(torch.ones(4, device=DEVICE)).mul_(7),
    "out=": lambda tensor: torch.add(torch.full((4,), 7.0, device=DEVICE), 0, out=tensor),
    "foreach": lambda tensor: torch._foreach_add_([tensor], [8.0]),
    "index": lambda tensor: tensor.__setitem__(slice(None), 7.0),
}


SAFE_ONLY_HERE = pytest.mark.virtual_only("CUDA's kernels of lists write to the shared memory")


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write, id=name, marks=SAFE_ONLY_HERE if name == "foreach" else ())
        for name, write in WRITES.items()
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_other_clones_do_not_see_a_write(write: Callable[[Tensor], object], which: int) -> None:
    tensor = torch.full((4,), -1.0, device=DEVICE)
    both = tensor, tensor._lazy_clone()
    write(both[which])
    assert both[which].int().ne(-1).all()
    assert both[1 - which].tolist() == [-1] * 4


def test_freed_clones_leave_no_memory() -> None:
    before = torch.cuda.memory_allocated(DEVICE)
    tensor = torch.ones(1000, device=DEVICE)
    clone = tensor._lazy_clone()
    del tensor
    assert clone.sum().item() == 1000
    del clone
    assert torch.cuda.memory_allocated(DEVICE) == before


@pytest.mark.virtual_only("it reads the virtual clock")
def test_a_write_includes_the_time_of_the_copy() -> None:
    tensor = torch.ones(1000, device=DEVICE)
    clone = tensor._lazy_clone()
    moved = clock().devices[1].memory_bytes
    clone.add_(1)  # 4,000 bytes read and written by the copy and by the addition
    assert clock().devices[1].memory_bytes - moved == 4 * 4000
    clone.add_(1)
    assert clock().devices[1].memory_bytes - moved == 6 * 4000
