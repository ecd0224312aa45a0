"""On one device a spread model calls its module unchanged, and moves inputs if necessary."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from forked_programs import run_forked

# All tests: virtual GPUs must be installed before PyTorch's first backward pass, also on the CPU.
pytestmark = pytest.mark.gpus(1)


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(device: str) -> anyrig.Rig:
    return anyrig.Rig.parse(device)


class Scaled(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return x * scale


def test_positional_and_keyword_arguments_are_moved(device: str, rig: anyrig.Rig) -> None:
    model = anyrig.spread(Scaled(), rig)
    x, scale = torch.ones(2, 3, device="cpu"), torch.full((2, 3), 3.0, device="cpu")
    for output in (model(x, scale=scale), model(x=x, scale=scale)):
        assert output.device == torch.device(device)
        assert output.tolist() == [[3.0] * 3] * 2


def test_outputs_losses_and_gradients(device: str, rig: anyrig.Rig) -> None:
    one = nn.Linear(4, 3).to(device)
    several = copy.deepcopy(one)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    model = anyrig.spread(several, rig, loss=criterion)
    x, y = torch.randn(6, 4, device=device), torch.randint(3, (6,), device=device)
    torch.testing.assert_close(model(x), one(x), rtol=0, atol=0)
    found, expected = model(x, target=y), criterion(one(x), y)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    found.backward()
    expected.backward()
    torch.testing.assert_close(several.weight.grad, one.weight.grad, rtol=0, atol=0)


def test_it_is_like_any_other_spread_model(device: str, rig: anyrig.Rig) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).to(device)
    model = anyrig.spread(module, rig)
    assert model.module is module
    assert list(model.state_dict()) == list(module.state_dict())
    assert [id(p) for p in model.parameters()] == [id(p) for p in module.parameters()]
    assert model.eval() is model
    assert not module[1].training
    stock = {f"module.{name}": value + 1 for name, value in module.state_dict().items()}
    model.load_state_dict(stock)
    torch.testing.assert_close(module[0].bias, stock["module.0.bias"])
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    x = torch.randn(2, 4, device=device)
    torch.testing.assert_close(again(x), model(x))


def test_what_is_no_batch_passes_through(device: str, rig: anyrig.Rig) -> None:
    """Nothing is divided, so sizes need not agree, and results are the module's own objects."""

    class Handing(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.made = [args, kwargs, torch.ones(2, device=device), object()]
            return self.made

    module = Handing()
    x, mask = torch.randn(6, 4, device=device), torch.ones(3, 3, device=device)
    made = anyrig.spread(module, rig)(x, [1, "two"], mask=mask)
    assert made is module.made
    assert made[0][0] is x
    assert made[1]["mask"] is mask


@pytest.mark.gpus(2)
def test_inputs_from_elsewhere_are_moved() -> None:
    module = nn.Linear(4, 3).to("cuda:0")
    model = anyrig.spread(module, anyrig.Rig.parse("cuda:0"))
    for where in ("cpu", "cuda:1"):
        x = torch.randn(6, 4, device=where, requires_grad=True)
        found = model(x)
        assert found.device == torch.device("cuda:0")
        found.sum().backward()
        assert x.grad is not None


@pytest.mark.gpus(2)
def test_an_output_device_of_its_own() -> None:
    module = nn.Linear(4, 3).to("cuda:0")
    model = anyrig.spread(module, anyrig.Rig.parse("cuda:0"), output_device="cpu")
    assert model(torch.randn(6, 4)).device == torch.device("cpu")


def test_it_says_why(rig: anyrig.Rig, device: str) -> None:
    model = anyrig.spread(nn.Linear(2, 2).to(device), rig)
    told = str(anyrig.explain(model))
    assert device in told
    assert "alone" in told
    with pytest.raises(anyrig.errors.AnyrigError, match="spread"):
        anyrig.explain(nn.Linear(2, 2))


@pytest.mark.gpus(2)
def test_without_a_rig_it_takes_every_device() -> None:
    seen: list[str] = []

    class Noting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(str(x.device))
            return x

    count = torch.cuda.device_count()
    anyrig.spread(Noting())(torch.ones(count, 2))
    assert sorted(seen) == [f"cuda:{index}" for index in range(count)]


def test_an_exception_is_the_modules_own(rig: anyrig.Rig, device: str) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        anyrig.spread(Failing(), rig)(torch.ones(2, device=device))


WITHOUT_GPUS = """
import warnings
import torch
import anyrig

warnings.simplefilter("always")
module, x = torch.nn.Linear(2, 2), torch.ones(3, 2)
for given in ({"device_ids": [0, 1]}, {"device_ids": ["cuda:1"], "output_device": 1},
              {"device_ids": [torch.device("cuda", 0)]}, {}, {"device_ids": ["cpu"]}):
    with warnings.catch_warnings(record=True) as caught:
        model = anyrig.DataParallel(module, **given)
        torch.testing.assert_close(model(x), module(x))
    print(*(f"{warning.category.__name__}: {warning.message}" for warning in caught), sep="; ")
"""


def test_a_machine_without_gpus_calls_the_module_as_stock_does() -> None:
    finished = run_forked("-c", WITHOUT_GPUS, CUDA_VISIBLE_DEVICES="")
    assert finished.returncode == 0, finished.stderr
    *warned, by_default, on_the_cpu = finished.stdout.splitlines()
    for line, ids in zip(warned, ("[0, 1]", "['cuda:1']", "[device("), strict=True):
        assert line.startswith(f"UserWarning: device_ids={ids}")
        assert "PyTorch finds no GPU: the module is called on the CPU" in line
    assert (by_default, on_the_cpu) == ("", "")
