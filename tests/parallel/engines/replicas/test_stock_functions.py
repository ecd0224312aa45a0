"""What PyTorch's own tests require of `parallel_apply`, `scatter`, `gather` and `replicate`.

The docstring of each test has the name of PyTorch's test, as in `test_stock_behaviours.py`.
"""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from stock_engines import Returning, both_rooms, doubles
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import parallel as stock

import anyrig
from anyrig.errors import DeviceTextError, SpreadError

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]


@both_rooms
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_parallel_apply(engine: Any, autocast: bool, wrapped: bool) -> None:
    """test_parallel_apply, test_parallel_apply_autocast: tuples of arguments, or single ones."""
    modules = [nn.Linear(10, 5).to(f"cuda:{index}") for index in range(2)]
    inputs = [torch.randn(2, 10, device=f"cuda:{index}") for index in range(2)]
    with torch.autocast("cuda", enabled=autocast):
        expected = [module(x) for module, x in zip(modules, inputs, strict=True)]
        found = engine.parallel_apply(modules, [(x,) for x in inputs] if wrapped else inputs)
    assert found[1].dtype is (torch.half if autocast else torch.float32)
    torch.testing.assert_close(list(found), expected)


@both_rooms
def test_parallel_apply_passes_an_exception_on(engine: Any) -> None:
    """test_parallel_apply_passes_exception: its class, the device, and where it was raised.

    PyTorch puts the replica's traceback into the text of a new exception. anyrig raises the
    replica's own exception, with its traceback.
    """

    def look_up(*args: Any) -> Any:
        return {}["wonderful"]

    module = Returning(look_up)
    with pytest.raises(KeyError, match=r"(?s)wonderful") as raised:
        engine.parallel_apply((module, module), (None, None), devices=[0, 1])
    if engine is stock:
        assert "in replica 0 on device 0" in str(raised.value)
        assert "in look_up" in str(raised.value)
    else:
        assert raised.value.args == ("wonderful",)
        shown = "".join(traceback.format_exception(raised.value))
        assert "in the replica on cuda:0" in shown
        assert raised.traceback[-1].name == "look_up"


@both_rooms
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_scatter(engine: Any, device: str) -> None:
    """test_scatter_cpu, test_scatter_gpu: parts, and first and second gradients."""
    x = doubles(4, 4, device=device, requires_grad=True)
    parts = engine.scatter(x, (0, 1))
    assert [part.get_device() for part in parts] == [0, 1]
    torch.testing.assert_close([part.cpu() for part in parts], [x[:2].cpu(), x[2:].cpu()])
    parts[0].backward(torch.full_like(parts[0], 2))
    torch.testing.assert_close(x.grad[:2], torch.full_like(x[:2], 2))
    assert x.grad[2:].count_nonzero() == 0
    assert gradcheck(lambda y: tuple(engine.scatter(y, (0, 1))), (x,))
    assert gradgradcheck(lambda y: tuple(engine.scatter(y, (0, 1))), (x,))


@both_rooms
@pytest.mark.parametrize("target", [0, 1, "cpu"])
@pytest.mark.parametrize("shape", [(2, 4), ()], ids=["matrices", "scalars"])
def test_gather(engine: Any, target: Any, shape: tuple[int, ...]) -> None:
    """test_gather_cpu, test_gather_gpu: scalars become a vector; first and second gradients."""
    parts = [doubles(*shape, device=f"cuda:{i}", requires_grad=True) for i in (0, 1)]
    if shape == () and engine is stock:
        with pytest.warns(UserWarning, match="scalars"):
            found = engine.gather(parts, target)
    else:
        found = engine.gather(parts, target)
    assert found.device == torch.device("cpu" if target == "cpu" else f"cuda:{target}")
    joined = torch.cat([part.cpu().view(-1, *shape[1:]) for part in parts])
    torch.testing.assert_close(found.cpu(), joined)
    grad = torch.randn_like(found)
    found.backward(grad)
    torch.testing.assert_close(
        torch.cat([p.grad.cpu().view(-1, *shape[1:]) for p in parts]), grad.cpu()
    )
    if shape:
        assert gradcheck(lambda *given: engine.gather(given, target), parts)
        assert gradgradcheck(lambda *given: engine.gather(given, target), parts)


def test_the_cpu_is_not_called_minus_one() -> None:
    """test_gather_cpu, with a difference: PyTorch itself deprecates -1."""
    with pytest.raises(DeviceTextError, match="-1 of type int names no device"):
        anyrig.parallel.gather([torch.ones(1, device="cuda:0")], -1)


@both_rooms
def test_outputs_of_different_keys_are_refused(engine: Any) -> None:
    """test_gather_different_len_dicts."""
    first = {"a": torch.randn(1, 2, device="cuda:0")}
    second = {key: torch.randn(1, 2, device="cuda:1") for key in ("b", "a")}
    with pytest.raises(ValueError, match=r"(?i)same number|keys"):
        engine.gather((first, second), 0)


@both_rooms
@pytest.mark.parametrize("devices", [(0, 1), [0, 1]])
def test_replicate(engine: Any, devices: Any) -> None:
    """test_replicate, test_replicate_buffers."""
    module = nn.Sequential(nn.Linear(10, 5), nn.BatchNorm1d(5)).cuda().eval()
    x = torch.randn(2, 10, device="cuda:0")
    for index, replica in enumerate(engine.replicate(module, devices)):
        for tensor in (*replica.parameters(), *replica.buffers()):
            assert tensor.get_device() == index
        assert replica[1].num_batches_tracked.get_device() == index
        torch.testing.assert_close(replica(x.to(index)).cpu(), module(x).cpu())


@pytest.mark.gpus(2)
def test_parallel_apply_of_nothing_of_unequal_numbers_and_of_modules_without_parameters() -> None:
    assert anyrig.parallel.parallel_apply([], []) == []
    layer, x = nn.Identity(), torch.ones(2, device="cuda:1")
    text = "there are 2 modules, 1 inputs and 2 kwargs{}; give as many of each"
    for devices, more in ((None, ""), (["cuda:0"], " and 1 devices")):
        with pytest.raises(SpreadError, match=text.format(more)):
            anyrig.parallel.parallel_apply([layer, layer], [x], devices=devices)
    there = nn.BatchNorm1d(3, affine=False).to("cuda:1").eval()  # has buffers only
    with torch.no_grad():
        parts = anyrig.parallel.parallel_apply(
            [layer, there], [[x.to("cuda:0")], torch.ones(2, 3).cuda(1)]
        )
    assert [part.get_device() for part in parts] == [0, 1]
    (found,) = anyrig.parallel.parallel_apply([lambda *, y: y.get_device()], [[]], [{"y": x}])
    assert found == 1
