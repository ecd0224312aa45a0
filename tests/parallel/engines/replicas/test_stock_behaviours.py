"""What PyTorch's own tests require of `nn.DataParallel`, tested with `anyrig.DataParallel`.

Each test checks a behaviour that PyTorch's `test/distributed/test_data_parallel.py` checks; the
docstring has the name of PyTorch's test. If anyrig differs on purpose, the docstring says how, and
`docs/data_parallel.md` says why. Behaviours that hold for both are tested with both.
"""

from __future__ import annotations

import gc
import io
from collections import OrderedDict
from copy import deepcopy
from typing import Any

import pytest
import torch
from stock_engines import Engine, Returning, both, both_rooms
from torch import Tensor, nn

import anyrig

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]


@both
def test_a_recurrent_module_that_flattens_its_parameters(engine: Engine) -> None:
    """test_data_parallel_rnn: also without gradients, and after a step."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 8, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor) -> Any:
            self.lstm.flatten_parameters()
            return self.lstm(x)

    one = Recurrent().to("cuda:0")
    several = deepcopy(one)
    model = engine(several, [0, 1])
    with torch.no_grad():
        model(torch.rand(2, 4, 6, device="cuda:0"))
    for module, forward in ((one, one), (several, model)):
        optimizer = torch.optim.SGD(module.parameters(), 1.0)
        output, _ = forward(torch.ones(4, 4, 6, device="cuda:0"))
        output.square().mean().backward()
        optimizer.step()
    for here, there in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(here, there)


@both
@pytest.mark.parametrize("device_ids", [[0, 1], [1, 0], [0], None])
@pytest.mark.parametrize("by_name", [False, True])
def test_several_inputs(engine: Engine, device_ids: list[int] | None, by_name: bool) -> None:
    """test_data_parallel_multiple_input: on the CPU, with a number, by position and by name."""

    def combine(a: Tensor, b: Tensor, factor: float, c: Tensor | None = None) -> Tensor:
        return factor * (a * b) if c is None else factor * (a * b + c)

    a, b = (torch.randn(5, 5, requires_grad=True) for _ in range(2))
    named = {"c": torch.randn(5, 5)} if by_name else {}
    expected = combine(a, b, 2.5, **named)
    expected_gradients = torch.autograd.grad(expected.sum(), (a, b))
    found = engine(Returning(combine), device_ids)(a, b, 2.5, **named)
    if device_ids != [0]:
        assert found.get_device() == (device_ids or [0])[0]
    torch.testing.assert_close(found.cpu(), expected)
    found.sum().backward()
    torch.testing.assert_close((a.grad, b.grad), expected_gradients)


@both
@pytest.mark.parametrize("dtype", [torch.float, torch.double, torch.half])
@pytest.mark.parametrize("unused", [None, [], {}, ()], ids=["plain", "list", "dict", "tuple"])
def test_arguments_by_name_only(engine: Engine, dtype: torch.dtype, unused: Any) -> None:
    """test_data_parallel_module, test_data_parallel_module_kwargs_only(_empty_*)."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 5)

        def forward(self, given: Any) -> Tensor:
            return self.linear(given["data"] if isinstance(given, dict) else given)

    module = Named().to("cuda:0", dtype)
    x = torch.randn(20, 10, device="cuda:0").to(dtype)
    given = x if unused is None else {"data": x, "unused": unused}
    found = engine(module)(given=given)
    assert found.get_device() == 0
    torch.testing.assert_close(found, module.linear(x))


@both
def test_the_output_on_the_first_device_is_that_of_one(engine: Engine) -> None:
    """test_data_parallel_small_back."""
    module = nn.Linear(10, 5).cuda()
    x = torch.randn(20, 10, device="cuda:0")
    torch.testing.assert_close(engine(module, [0, 1])(x), module(x))


@pytest.mark.parametrize(
    ("placed", "device_ids"),
    [
        (["cpu"], None),
        (["cuda:1"], None),
        (["cuda:0"], [1, 0]),
        (["cpu", "cuda:0"], [0, 1]),
        (["cuda:0", "cuda:1"], [0, 1]),
        (["cuda:0", "cuda:1"], [1, 0]),
    ],
)
@both
def test_a_module_elsewhere_is_refused(
    engine: Engine, placed: list[str], device_ids: list[int] | None
) -> None:
    """test_data_parallel_model_device: the module must be on the first device."""
    module = nn.Sequential(*(nn.Linear(2, 2).to(device) for device in placed))
    lead = f"cuda:{(device_ids or [0])[0]}"
    with pytest.raises(RuntimeError, match=f"(?s){lead}"):
        engine(module, device_ids)(torch.randn(2, 2, device="cuda:0"))


@both
@pytest.mark.parametrize("device_ids", [[0, 1], [1, 0]])
def test_a_module_moved_through_the_wrapper(engine: Engine, device_ids: list[int]) -> None:
    """test_data_parallel_model_device: `.to` of the wrapper puts it on the first device."""
    lead = f"cuda:{device_ids[0]}"
    module = nn.Linear(2, 2).cpu() if engine is nn.DataParallel else nn.Linear(2, 2).to(lead)
    model = engine(module, device_ids).to(lead)
    x = torch.randn(4, 2, device=lead)
    torch.testing.assert_close(model(x), module(x))


@both
def test_no_reference_cycles(engine: Engine) -> None:
    """test_data_parallel_model_no_refcycles."""
    model = engine(nn.Linear(1, 1).cuda())
    x = torch.randn(4, 1, device="cuda:0")
    model(x)
    gc.collect()
    model(x)
    model(x).sum().backward()
    assert gc.collect() == 0


@both
def test_nested_outputs(engine: Engine) -> None:
    """test_data_parallel_nested_output."""

    def nest(x: Tensor) -> Any:
        return [x, (x.sin(), x.cos(), [x + 1]), x, OrderedDict(a=x, b=[x.sin()])]

    x = torch.randn(2, 2, device="cuda:1")
    found, expected = engine(Returning(nest))(x), nest(x.to("cuda:0"))
    torch.testing.assert_close(found, expected)
    assert type(found) is list
    assert type(found[1]) is tuple
    assert type(found[1][2]) is list
    assert type(found[3]) is OrderedDict
    assert list(found[3]) == ["a", "b"]


@both
def test_nested_inputs(engine: Engine) -> None:
    """test_data_parallel_nested_input."""
    x = torch.randn(20, 3, device="cuda:1")
    model = engine(Returning(lambda *given: given[1][0]))
    torch.testing.assert_close(model(x.cos(), (x.sin(), x), x.sin()).to("cuda:1"), x.sin())


@both
@pytest.mark.parametrize("device_ids", [[0], [0, 1]])
def test_no_inputs(engine: Engine, device_ids: list[int]) -> None:
    """test_data_parallel_module_zero_inputs: the module runs once, on the first device."""
    calls: list[int] = []

    def make() -> Tensor:
        calls.append(1)
        return torch.ones(2, 3, device="cuda:0")

    found = engine(Returning(make), device_ids)()
    assert found.get_device() == 0
    assert found.shape == (2, 3)
    assert calls == [1]


@both
@pytest.mark.parametrize("output_device", [0, 1, torch.device("cuda:1"), None])
@pytest.mark.parametrize("as_devices", [False, True])
def test_devices_as_indices_or_objects(
    engine: Engine, output_device: Any, as_devices: bool
) -> None:
    """test_data_parallel_device_args, and other places for the output."""
    module = nn.Linear(10, 5).cuda()
    x = torch.randn(20, 10, device="cuda:0", requires_grad=True)
    device_ids = [torch.device("cuda", i) if as_devices else i for i in (0, 1)]
    found = engine(module, device_ids, output_device)(x)
    wanted = (
        0
        if output_device is None
        else torch.device("cuda", output_device).index
        if isinstance(output_device, int)
        else output_device.index
    )
    assert found.get_device() == wanted
    torch.testing.assert_close(found.cpu(), module(x).cpu())


@both
def test_autocast_as_a_decorator(engine: Engine) -> None:
    """test_autocast."""

    class Halved(nn.Linear):
        @torch.autocast("cuda")
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    assert engine(Halved(8, 8).cuda())(torch.randn(8, 8, device="cuda:0")).dtype is torch.half


@both_rooms
def test_replicas_can_be_saved(engine: Any) -> None:
    """test_save_replica_module."""
    replicas = engine.replicate(nn.Linear(8, 8).cuda(), [0, 1])
    file = io.BytesIO()
    torch.save(list(replicas), file)
    assert file.tell() > 0


@both
@pytest.mark.parametrize("kind", ["list", "dict"])
def test_lists_and_dicts_of_parameters_in_replicas(engine: Engine, kind: str) -> None:
    """test_parameter_list_dict_replica: replicas have them, and they require gradients."""
    values = [nn.Parameter(torch.rand(10)) for _ in range(2)]
    seen: list[tuple[bool, bool, int]] = []

    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            by_name = {str(index): value for index, value in enumerate(values)}
            self.data = nn.ParameterList(values) if kind == "list" else nn.ParameterDict(by_name)

        def forward(self, x: Tensor) -> Tensor:
            for index, value in enumerate(values):
                held = self.data[index if kind == "list" else str(index)]
                seen.append(
                    (torch.equal(held.cpu(), value.cpu()), held.requires_grad, held.get_device())
                )
            return x

    model = engine(Holding().cuda(), [0, 1])
    for _ in range(2):  # the first call computes halves, too
        seen.clear()
        model(torch.randn(8, 8, device="cuda:0"))
    assert sorted(seen) == [(True, True, device) for device in (0, 0, 1, 1)]


def test_complex_parameters_stay_complex() -> None:
    """test_data_parallel_complex, with a difference: PyTorch gives replicas pairs of reals."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.ones(1, 10, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.shift

    x = torch.rand(2, 10, dtype=torch.cfloat, device="cuda:0")
    found = anyrig.DataParallel(Shifted().cuda(), [0, 1])(x)
    torch.testing.assert_close(found, x + 1)


@both
def test_samples_in_another_dimension(engine: Engine) -> None:
    """A difference: PyTorch joins states along dimension 0; here they stay states."""
    module = nn.GRU(3, 2, batch_first=True).cuda()
    x = torch.randn(6, 4, 3, device="cuda:0")
    _, state = engine(module, [0, 1])(x)
    if engine is nn.DataParallel:
        assert state.shape == (2, 3, 2)
    else:
        torch.testing.assert_close(state, module(x)[1])


def test_samples_that_do_not_belong_together_are_refused() -> None:
    """A difference: PyTorch divides each tensor by itself."""

    def add(x: Tensor, offset: Tensor) -> Tensor:
        return x + offset

    module = Returning(add)
    x, offset = torch.ones(4, 3, device="cuda:0"), torch.ones(1, 3, device="cuda:0")
    with pytest.raises(ValueError, match=r"4 samples.*1 in"):
        anyrig.DataParallel(module, [0, 1])(x, offset)
    found = anyrig.DataParallel(module, [0, 1])(x, offset.expand_as(x))
    torch.testing.assert_close(found, x + offset)
