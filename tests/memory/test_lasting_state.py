"""What training holds between its steps, and why no batch size fits if that is too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from anyrig.memory import explain_oom
from anyrig.memory.lasting_state import LastingState, lasting_state
from anyrig.memory.out_of_memory import OutOfMemoryReport

CPU = torch.device("cpu")
BYTES = 4 * (10 * 10 + 10)  # of a layer
OPTIMIZERS: list[tuple[Callable[..., Optimizer], dict[str, Any], int]] = [
    (torch.optim.Adam, {}, 2),
    (torch.optim.AdamW, {"amsgrad": True}, 3),
    (torch.optim.SGD, {}, 0),
    (torch.optim.SGD, {"momentum": 0.9}, 1),
    (torch.optim.RMSprop, {}, 1),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, 3),
    (torch.optim.NAdam, {}, 2),
    (torch.optim.Adadelta, {}, 2),
]


class Custom(Optimizer):
    """Says nothing of its state before it has one."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"momentum": 0.9})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["half"] = torch.zeros_like(parameter, dtype=torch.float16)


@pytest.mark.parametrize(("make", "options", "tensors"), OPTIMIZERS)
def test_state_is_foretold_as_the_first_step_makes_it(
    make: Callable[..., Optimizer], options: dict[str, Any], tensors: int
) -> None:
    layer = nn.Linear(10, 10)
    optimizer = make(layer.parameters(), lr=0.1, **options)
    before = lasting_state(CPU, [layer], [optimizer])
    assert before == LastingState(BYTES, BYTES, tensors * BYTES, (type(optimizer).__name__,))
    layer(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    after = lasting_state(CPU, [layer], [optimizer])
    assert after.optimizer_bytes == pytest.approx(before.optimizer_bytes, abs=16)  # "step"


def test_what_is_not_trained_or_elsewhere_has_no_gradient() -> None:
    model = nn.ModuleList([nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 10, device="meta")])
    model[1].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    assert lasting_state(CPU, [model], [optimizer]) == LastingState(
        2 * BYTES, BYTES, 2 * BYTES, ("Adam",)
    )
    assert lasting_state(CPU, [model], []) == LastingState(2 * BYTES, 0, 0, ())
    # A parameter of no module counts, and once.
    alone = nn.Parameter(torch.zeros(10))
    both = [torch.optim.SGD([alone]), torch.optim.SGD([alone])]
    assert lasting_state(CPU, [], both) == LastingState(40, 40, 0, ("SGD",))


def test_of_other_optimizers_the_state_counts_that_they_have() -> None:
    layer = nn.Linear(10, 10)
    optimizer = Custom(layer.parameters())
    assert lasting_state(CPU, [layer], [optimizer]).optimizer_bytes == 0
    optimizer.step()
    assert lasting_state(CPU, [layer], [optimizer]).optimizer_bytes == BYTES // 2


def test_the_excess_is_described() -> None:
    state = LastingState(100, 100, 200, ("AdamW", "SGD"))
    assert state.describe_excess(400) is None
    assert state.describe_excess(399) == (
        "Parameters, gradients and the state of AdamW and SGD need 400 B, without activations. "
        "The GPU has less, so no batch size fits"
    )
    text = LastingState(400, 0, 0, ()).describe_excess(399)
    assert text is not None
    assert text.startswith("Parameters need 400 B")


@pytest.mark.gpus(1)
def test_a_report_says_so_on_a_device_that_is_too_small() -> None:
    weight = nn.Parameter(torch.zeros(2**18, device="cuda"))
    optimizer = torch.optim.AdamW([weight])
    with pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    report: OutOfMemoryReport = caught.value.report  # type: ignore[attr-defined]
    assert optimizer.state == {}
    assert report.lasting == LastingState(2**20, 2**20, 2**21, ("AdamW",))
    assert "the state of AdamW need" not in str(report)
    small = replace(report, total_bytes=2**22 - 1)
    assert "the state of AdamW need 4.00 MiB, without" in str(small)
