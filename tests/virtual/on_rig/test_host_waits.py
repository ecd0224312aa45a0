"""`torch.cuda.set_sync_debug_mode` finds exactly the calls that make the host wait for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

DEVICE = "cuda:1"
pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
Call = Callable[[Tensor], object]


@pytest.fixture
def x() -> Iterator[Tensor]:
    x = torch.arange(4.0, device=DEVICE)
    torch.cuda.set_sync_debug_mode("error")
    yield x
    torch.cuda.set_sync_debug_mode("default")


WAITS: dict[str, Call] = {
    "a value": lambda x: x[0].item(),
    "a copy to the host": lambda x: x.cpu(),
    "a copy from the host": lambda x: torch.ones(3).to(x.device),
    "what is not zero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 1],
    "a mask that tensors fill": lambda x: x.__setitem__(x > 1, torch.ones((), device=x.device)),
    "indices on the host": lambda x: x[torch.tensor([0, 1])],
    "what differs": lambda x: x.unique(),
    "equality": lambda x: torch.equal(x, x.clone()),
    "a stream": lambda x: torch.cuda.current_stream(DEVICE).synchronize(),
}


@pytest.mark.parametrize("case", WAITS)
def test_waits_are_found(x: Tensor, case: str) -> None:
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        WAITS[case](x)


def test_warnings_instead_of_errors(x: Tensor) -> None:
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
        x.nonzero()


def test_the_mode_is_checked_and_warns_as_a_prototype(x: Tensor) -> None:
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="Synchronization debug mode is a prototype"):
            torch.cuda.set_sync_debug_mode("warn")
        with pytest.raises(RuntimeError, match="invalid value of debug_mode, expected one of"):
            torch.cuda.set_sync_debug_mode(3)
    finally:
        torch.set_warn_always(always)
    assert torch.cuda.get_sync_debug_mode() == 1


def test_other_calls_run(x: Tensor) -> None:
    x[x > 1] = 1.0
    assert torch.equal(x, x)  # not compared: even NaN equals itself
    assert not torch.equal(x, x[1:])
    index = torch.ones(1, dtype=torch.long, device=x.device, pin_memory=False)
    assert x[index].shape == (1,)
    assert torch.repeat_interleave(x, index + 1, output_size=8).shape == (8,)
    x.to("cpu", non_blocking=True)
    torch.cuda.synchronize(DEVICE)
    torch.cuda.Event().synchronize()


def test_nan_in_the_same_tensor_is_equal() -> None:
    x = torch.tensor([1.0, float("nan")], device=DEVICE)
    assert torch.equal(x, x.view(2))
    assert not torch.equal(x, x.clone())
