"""What PyTorch's own tests require of the gradients and buffers of `nn.DataParallel`.

The docstring of each test has the name of PyTorch's test, as in `test_stock_behaviours.py`.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from stock_engines import Engine, Returning, assert_same_gradients, both, doubles
from torch import Tensor, nn
from torch.autograd import gradcheck

import anyrig

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]


@both
def test_buffers_that_require_grad(engine: Engine) -> None:
    """test_data_parallel_buffers_requiring_grad."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("slope", doubles(5, requires_grad=True))
            self.register_buffer("offset", doubles(5))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.slope + self.offset

    module = Scaled()
    model = engine(module, [0, 1])
    x = doubles(2, 5)
    assert gradcheck(lambda slope: model(x), (module.slope,))


@both
def test_no_grad_reaches_the_replicas(engine: Engine) -> None:
    """test_data_parallel_no_grad."""
    seen: list[bool] = []

    def note(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    model = engine(Returning(note), [0, 1])
    x = torch.randn(20, 3, device="cuda:0")
    for _ in range(2):  # the first calls compute halves, too
        seen.clear()
        with torch.no_grad():
            model(x)
        model(x)
    assert seen == [False, False, True, True]


@both
@pytest.mark.parametrize("device_ids", [(0, 1), (1, 0), None])
@pytest.mark.parametrize("kind", ["linear", "embedding", "sparse"])
def test_outputs_and_gradients(
    engine: Engine, kind: str, device_ids: tuple[int, int] | None
) -> None:
    """test_data_parallel, test_data_parallel_sparse: inputs lie on the last device."""
    lead = f"cuda:{(device_ids or (0, 1))[0]}"
    if kind == "linear":
        module: nn.Module = nn.Linear(10, 5).to(lead)
        x = torch.randn(20, 10, device="cuda:1")
    else:
        module = nn.Embedding(10, 5, sparse=kind == "sparse").to(lead)
        x = torch.randint(10, (20, 5), device="cuda:1")
    one = deepcopy(module)
    expected = one(x.to(lead))
    expected.sum().backward()
    found = engine(module, device_ids)(x)
    found.sum().backward()
    assert str(found.device) == lead
    torch.testing.assert_close(found, expected)
    if kind == "sparse":
        assert module.weight.grad.is_sparse
        torch.testing.assert_close(module.weight.grad.to_dense(), one.weight.grad.to_dense())
    else:
        assert_same_gradients(module, one)


@both
def test_a_gradient_penalty(engine: Engine) -> None:
    """test_data_parallel_function_deletion: the graph of a gradient outlives its functions."""
    module = nn.Linear(4, 1).cuda()
    model = engine(module, [0, 1])
    x = torch.ones(2, 4, device="cuda:0", requires_grad=True)
    output = model(x)
    (slope,) = torch.autograd.grad(
        output, x, grad_outputs=torch.ones_like(output), create_graph=True, retain_graph=True
    )
    slope.mean().backward()
    torch.testing.assert_close(module.weight.grad, torch.full((1, 4), 0.25, device="cuda:0"))
    assert module.bias.grad is None or module.bias.grad.item() == 0


def test_zero_grad_within_forward_clears_gradients() -> None:
    """test_zero_grad, with a difference: PyTorch warns that it has no effect; here it has one."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.zero_grad()
        return nn.functional.linear(x, self.weight)

    module = type("Net", (nn.Linear,), {"forward": forward})(3, 2, bias=False).cuda()
    model = anyrig.DataParallel(module, [0, 1])
    for _ in range(2):
        model(torch.ones(4, 3, device="cuda:0")).sum().backward()
        torch.testing.assert_close(module.weight.grad, torch.full_like(module.weight, 4))


@both
@pytest.mark.parametrize("formats", ["contiguous", "mixed", "channels_last"])
@pytest.mark.parametrize("halves", [0, 2, 4])
def test_the_layout_of_gradients(engine: Engine, formats: str, halves: int) -> None:
    """test_strided_grad_layout: gradients have the memory layout of their parameters."""
    last = {"contiguous": 0, "mixed": 2, "channels_last": 4}[formats]
    layouts = [torch.channels_last] * last + [torch.contiguous_format] * (4 - last)
    dtypes = [torch.float] * (4 - halves) + [torch.half] * halves
    widths = [8, 16, 32, 16, 8]

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Conv2d(widths[i], widths[i + 1], 2).to(memory_format=layouts[i], dtype=dtypes[i])
                for i in range(4)
            )

        def forward(self, x: Tensor) -> Tensor:
            for layer, dtype in zip(self.layers, dtypes, strict=True):
                x = layer(x.to(dtype))
            return x.float()

    one = Layers().cuda()
    several = deepcopy(one)
    model = engine(several, [0, 1])
    x = torch.randn(16, 8, 8, 8, device="cuda:0")
    tolerance = 1e-3 if halves else 1e-5
    for _ in range(2):
        for module, forward in ((one, one), (several, model)):
            forward(x).square().mean().backward()
            for layer, layout in zip(module.layers, layouts, strict=True):
                assert layer.weight.grad.is_contiguous(memory_format=layout)
        assert_same_gradients(several, one, rtol=tolerance, atol=tolerance)
        for module in (one, several):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            module.zero_grad()


@both
def test_what_forward_writes_to_its_module(engine: Engine) -> None:
    """A difference: PyTorch loses assigned values; here the lead's stay. Lists are shared."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = ""
            self.seen: list[str] = []

        def forward(self, x: Tensor) -> Tensor:
            self.last = str(x.device)
            self.seen.append(str(x.device))
            return x

    module = Writing()
    model = engine(module, [0, 1])
    for _ in range(3):
        model(torch.ones(4, 1, device="cuda:0"))
    assert module.last == ("" if engine is nn.DataParallel else "cuda:0")
    assert sorted(module.seen) == ["cuda:0"] * 3 + ["cuda:1"] * 3


@both
@pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0:UserWarning")
def test_a_loss_that_the_module_computes(engine: Engine) -> None:
    """A difference: PyTorch returns a vector, whose mean is wrong if parts are unequal."""
    x = torch.arange(15.0, device="cuda:0").view(5, 3)
    losses = engine(Returning(lambda given: given.mean()), [0, 1])(x)
    assert losses.shape == ((2,) if engine is nn.DataParallel else ())
    error = float((losses.mean() - x.mean()).abs())
    assert error > 1e-3 if engine is nn.DataParallel else error < 1e-5
