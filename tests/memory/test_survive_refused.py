"""Steps that `survive` cannot divide, and errors that it does not take for exhausted memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from surviving_steps import notes_of
from torch import Tensor, nn

import anyrig
from anyrig.errors import MemoryTrackingError
from anyrig.memory import survive

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:a step of"),
    pytest.mark.usefixtures("few_objects"),
]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_libraries_run_out_of_memory_too(error: Exception) -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)

    def loss_of(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise error
        return (x * weight).mean()

    step = survive(loss_of)
    assert step(torch.ones(4, 2, device="cuda")).item() == 1
    assert step.largest_part == 2


class Sample:
    pass


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((), {}), "no argument of the step is a tensor"),
        (((torch.ones(4),), {"y": torch.ones(3)}), r"argument 'y' has 3 entries .* tensor has 4"),
        (((torch.ones(4), [Sample()]), {}), r"argument 1, \[0\], is a Sample"),
        (((torch.ones(4), ["a"] * 4), {}), "a list of 4 strs may have one entry for each sample"),
        (((torch.ones(4, requires_grad=True),), {}), "argument 0 requires a gradient"),
        (((torch.ones(4).to_sparse(),), {}), "argument 0 is a nested or sparse tensor"),
        (((torch.ones(1),), {}), "its parts have one sample each"),
    ],
)
def test_a_step_that_cannot_be_divided(arguments: Any, words: str) -> None:
    def loss_of(*args: Any, **kwargs: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    args, kwargs = arguments
    with pytest.raises(torch.OutOfMemoryError) as raised:
        survive(loss_of)(*args, **kwargs)
    assert re.search(words, notes_of(raised.value))
    assert raised.traceback[-1].name == "loss_of"


def test_other_errors_and_wrong_losses() -> None:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("on fire")

    with pytest.raises(RuntimeError, match=r"^on fire$"):
        survive(fail)(torch.ones(3))
    with pytest.raises(MemoryTrackingError, match=r"returned a tensor of shape \(3,\)"):
        survive(lambda x: x)(torch.ones(3))
    with pytest.raises(MemoryTrackingError, match="returned a float"):
        survive(lambda x: 1.0)(torch.ones(3))  # type: ignore[arg-type,return-value]
    with pytest.raises(MemoryTrackingError, match="largest_part=0 is not a number of samples"):
        survive(fail, largest_part=0)
    with pytest.raises(MemoryTrackingError, match="reduction='none' is neither"):
        survive(fail, reduction="none")  # type: ignore[arg-type]
    model = anyrig.spread(nn.Linear(2, 2).cuda(), loss=nn.MSELoss(), accumulate=True)
    with pytest.raises(MemoryTrackingError, match="spread with accumulate=True"):
        survive(lambda x: model(x, target=x))
