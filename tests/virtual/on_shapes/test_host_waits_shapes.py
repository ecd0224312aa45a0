"""`torch.cuda.set_sync_debug_mode` also finds host waits in shape-only mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")


@pytest.fixture
def x() -> Iterator[Tensor]:
    x = torch.arange(4.0, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    yield x
    torch.cuda.set_sync_debug_mode("default")


WAITS: dict[str, Callable[[Tensor], object]] = {
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "writing by indices on the host": lambda x: x.__setitem__(torch.tensor([0, 1]), 1.0),
    "a copy from the host": lambda x: torch.ones(3).to(x.device),
    "a stream": lambda x: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("case", WAITS)
def test_waits_are_found(x: Tensor, case: str) -> None:
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAITS[case](x)


def test_indices_on_the_gpu_do_not_make_the_host_wait(x: Tensor) -> None:
    index = torch.ones(1, dtype=torch.long, device="cuda")
    assert x[index].shape == (1,)
    x[index] = 1.0
