"""What the tensors are when most memory is in use: `MemoryFacts.kinds_at_peak`.

The sizes are multiples of 2 MiB, so that the allocator rounds none of them up. These tests run in a
process of their own (see `test_tensors_at_peak.py`): where other tests have left memory, another
moment has the peak.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import anyrig
from anyrig.rehearsal.watching import Report

pytestmark = pytest.mark.gpus(1)

MIB = 2**20
WIDTH, ROWS = 2048, 1024  # what Adam computes on its way exceeds the workspace of cuBLAS
WEIGHT_BYTES, RESULT_BYTES = 4 * WIDTH * WIDTH, 4 * ROWS * WIDTH
LAYERS = 6
SMALL = 2048  # the loss, and the gradient with which the backward pass begins: 512 bytes each


class Net(nn.Module):
    """A frozen layer, a trained one, and sigmoids, each of which keeps its result."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trained(self.frozen(x))
        for _ in range(LAYERS):
            x = x.sigmoid()
        return x


class Recomputing(Net):
    """The same, with the sigmoids computed again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.trained(self.frozen(x))
        y: Tensor = checkpoint(self._sigmoids, x, use_reentrant=False)
        return y

    def _sigmoids(self, x: Tensor) -> Tensor:
        for _ in range(LAYERS):
            x = x.sigmoid()
        return x


def train(
    model: nn.Module,
    rows: int = ROWS,
    steps: int = 3,
    before_step: Callable[[], None] = lambda: None,
    set_to_none: bool = True,
) -> Report:
    """Train on cuda:0, and return the report."""
    torch.cuda.empty_cache()
    model = model.cuda()
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(trained, foreach=True)
    x = torch.ones(rows, WIDTH, device="cuda")
    with anyrig.rehearsal.watch() as report:
        for _ in range(steps):
            model(x).sum().backward()
            before_step()
            optimizer.step()
            optimizer.zero_grad(set_to_none)
    return report


def kinds_of(report: Report) -> dict[str, int]:
    (memory,) = report.facts.memory
    (device,) = report.facts.devices
    assert memory.kinds_at_peak is not None
    assert sum(memory.kinds_at_peak.values()) == device.peak.tensor_bytes
    return memory.kinds_at_peak


def test_a_peak_between_forward_and_backward() -> None:
    report = train(Net())
    kinds = kinds_of(report)
    # The frozen layer's result is kept for the weight's gradient.
    assert kinds["activations"] == pytest.approx((LAYERS + 1) * RESULT_BYTES, abs=SMALL)
    assert kinds["parameters"] == 2 * WEIGHT_BYTES
    assert kinds["gradients"] == 0
    assert kinds["optimizer"] == 2 * WEIGHT_BYTES
    # The batch, and the gradient of a result.
    assert kinds["other"] == pytest.approx(2 * RESULT_BYTES, abs=SMALL)
    assert "at the peak: parameters 32.00 MiB, optimizer 32.00 MiB, activations" in str(report)


def test_gradients_that_are_kept_are_there_at_the_peak() -> None:
    kinds = kinds_of(train(Net(), set_to_none=False))
    assert kinds["gradients"] == WEIGHT_BYTES
    assert kinds["activations"] == pytest.approx((LAYERS + 1) * RESULT_BYTES, abs=SMALL)


def test_what_an_optimizer_computes_on_its_way_is_no_activation() -> None:
    kinds = kinds_of(train(Net(), rows=2))
    assert kinds["parameters"] == 2 * WEIGHT_BYTES
    assert (kinds["gradients"], kinds["optimizer"]) == (WEIGHT_BYTES, 2 * WEIGHT_BYTES)
    assert kinds["activations"] < MIB
    assert kinds["other"] >= WEIGHT_BYTES


def test_a_workspace_decides_which_moment_is_the_peak() -> None:
    values = 3 * 2**18  # with the workspace, more than what Adam computes on its way

    def sort() -> None:
        torch.ones(values, device="cuda").sort()

    kinds = kinds_of(train(Net(), rows=2, before_step=sort))
    # The input, the sorted values and their indices, each in a block that may be 1 MiB larger.
    assert 16 * values <= kinds["activations"] < 16 * values + 4 * MIB
    assert kinds["other"] < MIB


def test_what_a_backward_pass_computes_again_is_an_activation() -> None:
    kinds = kinds_of(train(Recomputing()))
    # The results of both layers, and of the sigmoids.
    assert kinds["activations"] == pytest.approx((LAYERS + 2) * RESULT_BYTES, abs=SMALL)


def test_a_peak_after_the_last_step_is_unknown() -> None:
    big = []

    def fill() -> None:
        big.append(torch.empty(64 * MIB, device="cuda"))

    with anyrig.rehearsal.watch() as report:
        train(Net(), rows=2, steps=1)
        fill()
    assert report.facts.memory[0].kinds_at_peak is None
    assert "tensors at the peak" not in str(report)
    # If the same memory is allocated in a step and outlives it, it counts as "other".
    big.clear()
    kinds = kinds_of(train(Net(), rows=2, before_step=fill))
    assert kinds["other"] >= 64 * MIB
