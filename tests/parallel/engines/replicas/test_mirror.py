"""What a replica has in the place of the module's attributes."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig

pytestmark = [
    pytest.mark.gpus(2),
    pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning"),
]


def spread(module: nn.Module) -> Any:
    return anyrig.spread(module.double().to("cuda:0"), anyrig.Rig.parse("cuda:0,1"))


def batch(rows: int = 6) -> Tensor:
    return torch.randn(rows, 4, dtype=torch.float64, device="cuda:0")


def check(module: nn.Module, model: Any) -> None:
    x = batch()
    found = model(x)
    torch.testing.assert_close(found, module(x))
    if not found.requires_grad:
        return
    parameters = list(module.parameters())
    found = torch.autograd.grad(model(x).square().sum(), parameters)
    expected = torch.autograd.grad(module(x).square().sum(), parameters)
    torch.testing.assert_close(found, expected)


class Methods(nn.Module):
    """Has bound methods, functions of its own layers, and layers in plain containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.call_first = self.run_first
        self.call_second = functools.partial(self.run, self.second, scale=2.0)
        self.layers = [self.first, {"second": self.second}]
        self.weights = (self.first.weight, self.second.bias)

    def run_first(self, x: Tensor) -> Tensor:
        return self.first(x)

    def run(self, layer: nn.Module, x: Tensor, scale: float) -> Tensor:
        return layer(x) * scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.call_second(self.call_first(x))
        x = self.layers[1]["second"](self.layers[0](x))
        return x @ self.weights[0] + self.weights[1]


def test_methods_and_containers_lead_to_the_replica() -> None:
    module = Methods()
    model = spread(module)
    check(module, model)
    module.layers.append(nn.Identity())
    module.weights = (module.second.weight, module.first.bias)
    check(module, model)


class Plain(nn.Module):
    """Has tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mask = torch.ones(4, dtype=torch.float64, device="cuda:0")
        self.tables = [torch.full((4,), 2.0, dtype=torch.float64, device="cuda:0")]
        self.on_cpu = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        assert self.on_cpu.device.type == "cpu"
        return self.linear(x) * self.mask + self.tables[0]


def test_plain_tensors_follow() -> None:
    module = Plain()
    model = spread(module)
    check(module, model)
    module.mask.mul_(3)
    check(module, model)
    module.mask = module.mask * 2
    module.tables[0] = module.tables[0] + 1
    check(module, model)


class Renamed(nn.Module):
    """Has a tensor under one of two names; nothing else changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        factor = torch.full((4,), 2.0, dtype=torch.float64, device="cuda:0")
        self.linear = nn.Linear(4, 2).double().to("cuda:0")
        if kind == "buffer":
            self.register_buffer("first", factor)
        else:
            self.first = nn.Parameter(factor) if kind == "parameter" else factor

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.first if hasattr(self, "first") else x + self.second)


@pytest.mark.parametrize("kind", ["parameter", "buffer", "plain tensor"])
def test_a_tensor_that_gets_another_name(kind: str) -> None:
    module = Renamed(kind)
    model = spread(module)
    check(module, model)
    factor = module.first
    del module.first
    if kind == "buffer":
        module.register_buffer("second", factor)
    else:
        module.second = factor
    check(module, model)


def test_a_weight_that_another_network_makes_gets_its_gradient() -> None:
    module = Plain()
    maker = nn.Linear(4, 4).double().to("cuda:0")
    model = spread(module)
    x = batch()
    gradients = []
    for call in (module, model):
        module.mask = maker(torch.ones(4, dtype=torch.float64, device="cuda:0"))
        gradients.append(torch.autograd.grad(call(x).sum(), list(maker.parameters())))
    torch.testing.assert_close(*gradients)


def test_a_plain_tensor_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Plain()
    model = spread(module)
    seen: list[int] = []

    def note(layer: nn.Module, args: Any) -> None:
        seen.append(layer.mask.data_ptr())

    module.register_forward_pre_hook(note)
    for _ in range(3):
        model(batch())
    assert len(set(seen)) == 2


class Writing(nn.Module):
    """Writes attributes and buffers in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.total = self.total + x.detach().sum()
        self.count += 1
        self.last = self.linear(x)
        return self.last * self.calls + self.count


def test_what_the_lead_writes_stays_and_holds_in_the_replicas() -> None:
    module = Writing()
    model = spread(module)
    for step in range(1, 4):
        x = batch()
        torch.testing.assert_close(model(x), module.linear(x) * step + step)
        assert module.calls == module.count.item() == step
        assert module.last.shape == (len(x), 4)  # with a graph, so it is joined


class TiedDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.a = nn.Sequential(shared, nn.Tanh(), shared)
        self.b = shared
        self.b.alias = nn.ModuleList([self.a[1]])

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.b.alias[0](self.a(x)))


def test_modules_that_appear_twice_are_one_in_a_replica() -> None:
    module = TiedDeep()
    check(module, spread(module))
    replica = anyrig.parallel.replicate(module, ["cuda:0", "cuda:1"])[1]
    assert replica.a[0] is replica.a[2] is replica.b
    assert replica.a[0] is not module.b


def test_replicas_list_their_parameters() -> None:
    module = Methods().to("cuda:0")
    replica = anyrig.parallel.replicate(module, ["cuda:0", "cuda:1"])[1]
    assert [name for name, _ in replica.named_parameters()] == [
        name for name, _ in module.named_parameters()
    ]
    assert next(replica.parameters()).device == torch.device("cuda:1")
    assert dict(replica.first._parameters).keys() == {"weight", "bias"}
    assert {**replica.first._parameters}["bias"] is replica.first.bias
    assert replica.first._parameters.get("none") is None


def test_a_spread_module_within_another_is_called_as_it_is() -> None:
    inner = nn.Linear(4, 4).double().to("cuda:0")
    module = nn.Sequential(nn.Linear(4, 4), anyrig.DataParallel(inner, [0, 1]))
    check(module, spread(module))
    assert list(module.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_parametrizations() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.utils.parametrizations.weight_norm(module[0])
    nn.utils.parametrizations.orthogonal(module[1])
    model = spread(module)
    check(module, model)
    nn.utils.parametrize.remove_parametrizations(module[0], "weight")
    check(module, model)


def test_what_cannot_be_copied_is_told() -> None:
    compiled = torch.compile(nn.Linear(4, 4).to("cuda:0"), backend="eager")
    with pytest.raises(anyrig.errors.AnyrigError, match=r"torch\.compile.*_orig_mod"):
        anyrig.DataParallel(compiled, [0, 1])(batch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of PyTorch advise against it
        scripted = torch.jit.script(nn.Linear(4, 4).to("cuda:0"))
    with pytest.raises(anyrig.errors.AnyrigError, match="spread the module it was made from"):
        anyrig.DataParallel(scripted, [0, 1])(batch())
    lazy = nn.LazyLinear(4).to("cuda:0")
    with pytest.raises(anyrig.errors.AnyrigError, match="has no shape yet"):
        anyrig.DataParallel(lazy, [0, 1])(batch())


def test_what_is_wrong_is_told_at_every_step_until_it_is_mended() -> None:
    module = Methods()
    model = spread(module)
    check(module, model)
    for wrong in (lambda: module.to("cpu"), lambda: setattr(module, "third", nn.Linear(2, 2))):
        wrong()
        for _ in range(2):
            with pytest.raises(anyrig.errors.AnyrigError, match="on device cuda:0, the lead, but"):
                model(batch())
        module.to("cuda:0")
        x = batch()
        torch.testing.assert_close(model(x), module(x))


def test_a_list_that_contains_itself_is_one_for_all_replicas() -> None:
    class Circular(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert self.circle[0] is self.circle
            self.circle.append(x.get_device())
            return super().forward(x)

    module = Circular(4, 4)
    module.circle = []
    module.circle.append(module.circle)
    check(module, spread(module))
    assert {1, 0} <= set(module.circle[1:])


def test_sparse_weights_are_refused_by_name() -> None:
    module = nn.Linear(4, 4).to("cuda:0")
    module.register_buffer("mask", torch.eye(4, device="cuda:0").to_sparse())
    words = r"buffer mask has layout torch\.sparse_coo, which is not copied.*strided tensors"
    with pytest.raises(anyrig.errors.AnyrigError, match=words):
        anyrig.spread(module, anyrig.Rig.parse("cuda:0,1"))


class Reading(nn.Linear):
    """Reads its parameters and buffers in each way that a dict has."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        named = dict(self._parameters.items())
        assert self._parameters.get("absent", 3) == 3
        assert self._parameters.get("absent") is None
        assert [id(value) for value in self._parameters.values()] == list(map(id, named.values()))
        assert list(self._parameters) == list(named) == ["weight", "bias"]
        shift = self._buffers.pop("shift")
        assert "shift" not in self._buffers
        assert self._buffers.pop("absent", None) is None
        with pytest.raises(KeyError):
            self._buffers.pop("absent")
        self._buffers["shift"] = shift
        assert shift.device == x.device
        return nn.functional.linear(x, named["weight"], named["bias"]) + shift


def test_a_replica_reads_its_tensors_in_every_way_of_a_dict() -> None:
    module = Reading()
    model = spread(module)
    for _ in range(2):
        check(module, model)
        module.shift.mul_(2)


def test_a_saved_replica_has_its_tensors() -> None:
    module = nn.Linear(4, 4).to("cuda:0")
    _, replica = anyrig.parallel.replicate(module, ["cuda:0", "cuda:1"])
    saved = replica._parameters.__reduce__()[1][0]
    assert type(saved) is dict
    torch.testing.assert_close(saved["weight"].cpu(), module.weight.cpu())
    torch.testing.assert_close(saved["bias"].cpu(), module.bias.cpu())
