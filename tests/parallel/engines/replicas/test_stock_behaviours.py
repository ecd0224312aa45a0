"""What PyTorch's own tests require of `nn.DataParallel`, tested with `anyrig.DataParallel`.

Each test checks a behaviour that PyTorch's `test/distributed/test_data_parallel.py` checks; the
docstring has the name of PyTorch's test. If anyrig differs on purpose, the docstring says how, and
`docs/data_parallel.md` says why. Behaviours that hold for both are tested with both.
"""

from __future__ import annotations

import gc
import io
import traceback
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import parallel as stock

import anyrig
from anyrig.errors import DeviceTextError, SpreadError

# Without cuDNN, as on a virtual GPU, PyTorch warns when a recurrent module reaches CUDA.
pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN"),
]
Engine = Callable[..., Any]
# PyTorch's gather warns about the index with which PyTorch's scatter calls it.
quiet = pytest.mark.filterwarnings("ignore:Using -1 to represent CPU tensor is deprecated")
both = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(anyrig.DataParallel, id="anyrig"),
        pytest.param(nn.DataParallel, id="stock", marks=quiet),
    ],
)
both_rooms = pytest.mark.parametrize(
    "engine",
    [pytest.param(anyrig.parallel, id="anyrig"), pytest.param(stock, id="stock", marks=quiet)],
)


def doubles(*shape: int, device: str = "cuda:0", requires_grad: bool = False) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=requires_grad)


def assert_same_gradients(found: nn.Module, expected: nn.Module, **tolerance: float) -> None:
    for here, there in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(here.grad.cpu(), there.grad.cpu(), **tolerance)


class Returning(nn.Module):
    """Calls a function: a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


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
