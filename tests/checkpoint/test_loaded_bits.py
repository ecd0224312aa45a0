"""A load gives the bits that were saved, converts on request, or refuses by the tensor's name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyrig
from anyrig.errors import CheckpointError, KeyMismatchError


def holder(value: Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("part", value)
    return module


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        parameter = next(model.parameters())
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=generator).to(parameter.dtype)
        model(x).square().sum().backward()
        optimizer.step()


PAIRS = {
    "float in int": (torch.tensor([1.5, 2.5]), torch.tensor([0, 0])),
    "float in bool": (torch.tensor([0.5, 0.0]), torch.tensor([False, False])),
    "wide int in narrow int": (torch.tensor([2**40, 1]), torch.tensor([0, 0], dtype=torch.int32)),
    "negative int in unsigned": (torch.tensor([-1, 1]), torch.tensor([0, 0], dtype=torch.uint8)),
    "int in float": (torch.tensor([2**53 + 1, 1]), torch.tensor([0.0, 0.0])),
    "complex in real": (torch.tensor([1 + 2j, 1]), torch.tensor([0.0, 0.0])),
    "real in complex": (torch.tensor([1.0, 2.0]), torch.tensor([0j, 0])),
    "sparse in dense": (torch.tensor([1.0, 0.0]).to_sparse(), torch.tensor([0.0, 0.0])),
    "dense in sparse": (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]).to_sparse()),
}
FLOATS = {
    "float32 in bfloat16": (torch.tensor([1.001, 2.0]), torch.zeros(2, dtype=torch.bfloat16)),
    "float16 in bfloat16": (
        torch.tensor([1.001, 2.0], dtype=torch.float16),
        torch.zeros(2, dtype=torch.bfloat16),
    ),
    "float64 in float32": (torch.tensor([1 / 3, 2.0], dtype=torch.float64), torch.zeros(2)),
    "bfloat16 in float32": (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.zeros(2)),
    "complex128 in complex64": (
        torch.tensor([1 / 3 + 1j, 2.0], dtype=torch.complex128),
        torch.zeros(2, dtype=torch.complex64),
    ),
}


def test_lazy_conjugates_and_negatives_are_saved_as_what_they_stand_for(tmp_path: Path) -> None:
    """safetensors.torch.save writes the bytes in memory, which are those before the conjugation."""
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    negative = torch.tensor([1 + 2j]).conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    for name, value in {"conjugate": conjugate, "negative": negative}.items():
        anyrig.save(tmp_path / name, model=holder(value))
        loaded = holder(torch.zeros_like(value).resolve_conj().resolve_neg())
        anyrig.load(tmp_path / name, model=loaded)
        assert torch.equal(loaded.part, value)


@pytest.mark.parametrize("kind", [*PAIRS, *FLOATS])
def test_another_type_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    saved, own = {**PAIRS, **FLOATS}[kind]
    anyrig.save(tmp_path / "a", model=holder(saved))
    model = holder(own.clone())
    with pytest.raises(KeyMismatchError, match=r"the model in .* has part as torch\.") as caught:
        anyrig.load(tmp_path / "a", model=model)
    assert str(own.dtype) in str(caught.value)
    assert "Nothing was loaded" in str(caught.value)
    assert torch.equal(model.part.to_dense(), own.to_dense())


@pytest.mark.parametrize("kind", PAIRS)
def test_a_conversion_that_is_no_rounding_is_refused_even_on_request(
    kind: str, tmp_path: Path
) -> None:
    saved, own = PAIRS[kind]
    anyrig.save(tmp_path / "a", model=holder(saved))
    with pytest.raises(KeyMismatchError, match="has part as"):
        anyrig.load(tmp_path / "a", model=holder(own.clone()), convert_dtypes=True)


@pytest.mark.parametrize("kind", FLOATS)
def test_floating_point_values_are_converted_on_request(kind: str, tmp_path: Path) -> None:
    saved, own = FLOATS[kind]
    anyrig.save(tmp_path / "a", model=holder(saved))
    model = holder(own.clone())
    assert anyrig.resume(tmp_path / "a", model=model, convert_dtypes=True) is not None
    assert model.part.dtype == own.dtype
    assert torch.equal(model.part, saved.to(own.dtype))


def test_a_model_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", model=nn.Linear(4, 4))
    with pytest.raises(KeyMismatchError, match=r"has weight, bias on the meta device"):
        anyrig.load(tmp_path / "a", model=nn.Linear(4, 4, device="meta"))
    with pytest.raises(CheckpointError, match="the tensor weight of the model is on the meta dev"):
        anyrig.save(tmp_path / "a", model=nn.Linear(4, 4, device="meta"))


class OwnState(torch.optim.Optimizer):
    """Keeps state in types other than the parameters'."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["master"] = p.detach().clone().float()
                    state["exact"] = torch.zeros_like(p, dtype=torch.float64)
                    state["codes"] = torch.zeros_like(p, dtype=torch.uint8)
                    state["count"] = torch.tensor(0)
                state["exact"].mul_(0.9).add_(p.grad.double())
                state["codes"].add_(3)
                state["count"] += 1
                state["master"].sub_(state["exact"].float(), alpha=group["lr"])
                p.copy_(state["master"] + state["codes"] * 1e-3)


class OwnState2(OwnState):
    """A subclass, which finds the same state."""


class OtherState(torch.optim.Optimizer):
    """Has the same options as `OwnState`, and another state."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "own state": OwnState,
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9),
    "Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "used"])
def test_state_of_any_type_goes_on_with_the_same_bits(
    kind: str, dtype: torch.dtype, fresh: bool, tmp_path: Path
) -> None:
    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(4, 4).to(dtype)
        return model, OPTIMIZERS[kind](model.parameters())

    one, optimizer = make(0)
    train(one, optimizer)
    anyrig.save(tmp_path / "a", model=one, optimizer=optimizer)
    other, its_optimizer = make(1)
    if not fresh:
        train(other, its_optimizer)
    anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
    for name, value in optimizer.state[one.weight].items():
        found = its_optimizer.state[other.weight][name]
        assert getattr(found, "dtype", type(found)) == getattr(value, "dtype", type(value)), name
    train(one, optimizer)
    train(other, its_optimizer)
    assert torch.equal(one.weight, other.weight)


def test_the_present_state_of_an_optimizer_stays_in_its_memory(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path, model=model, optimizer=optimizer)
    expected = copy.deepcopy(optimizer.state_dict()["state"])
    train(model, optimizer, 1)
    state = optimizer.state[model.weight]
    places = {name: each.data_ptr() for name, each in state.items()}
    anyrig.load(tmp_path, model=model, optimizer=optimizer)
    state = optimizer.state[model.weight]
    assert {name: each.data_ptr() for name, each in state.items()} == places
    assert all(torch.equal(each, expected[0][name]) for name, each in state.items())


def test_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path, optimizer=optimizer)
    optimizer.state[model.weight]["exp_avg"] = torch.zeros(2, 2)
    with pytest.raises(
        KeyMismatchError, match=r"exp_avg of .* in the shape \[4, 4\] instead of \[2"
    ):
        anyrig.load(tmp_path, optimizer=optimizer)
    assert optimizer.state[model.weight]["exp_avg"].shape == (2, 2)


def test_state_in_another_type_than_the_optimizer_s_own_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = OwnState(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path / "a", optimizer=optimizer)
    state = optimizer.state[model.weight]
    state["exact"] = state["exact"].bfloat16()
    before = copy.deepcopy(state)
    with pytest.raises(KeyMismatchError, match=r"has exact of .* as torch\.float64 instead of tor"):
        anyrig.load(tmp_path / "a", optimizer=optimizer)
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_parameters_of_another_type_are_refused_or_converted_with_their_state(
    tmp_path: Path,
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
    other = nn.Linear(4, 4).bfloat16()
    its_optimizer = torch.optim.Adam(other.parameters())
    with pytest.raises(KeyMismatchError, match=r"weight as torch\.float32 instead of torch\.b"):
        anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
    anyrig.save(tmp_path / "b", optimizer=optimizer)
    with pytest.raises(KeyMismatchError, match=r"as float32, and the parameter is bfloat16"):
        anyrig.load(tmp_path / "b", optimizer=its_optimizer)
    assert not its_optimizer.state
    anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer, convert_dtypes=True)
    state = its_optimizer.state[other.weight]
    assert state["exp_avg"].dtype == torch.bfloat16
    assert state["step"].dtype == torch.float32
    train(other, its_optimizer)


def test_float32_state_of_converted_parameters_stays_float32(tmp_path: Path) -> None:
    model = nn.Linear(4, 4).bfloat16()
    optimizer = OwnState(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
    other = nn.Linear(4, 4).half()
    its_optimizer = OwnState(other.parameters())
    anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer, convert_dtypes=True)
    assert its_optimizer.state[other.weight]["master"].dtype == torch.float32


OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Adam in SGD": (torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "SGD in Adam": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), torch.optim.Adam),
    "RMSprop in Adagrad": (torch.optim.RMSprop, torch.optim.Adagrad),
    "Adam in RAdam": (torch.optim.Adam, torch.optim.RAdam),
    "own in another own": (OwnState, OtherState),
    "own in SGD": (OwnState, lambda p: torch.optim.SGD(p, 0.1)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_optimizer_is_refused(kind: str, tmp_path: Path) -> None:
    make, make_other = OTHERS[kind]
    model = nn.Linear(4, 4)
    optimizer = make(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
    other = nn.Linear(4, 4)
    its_optimizer = make_other(other.parameters())
    weight, groups = other.weight.clone(), copy.deepcopy(its_optimizer.state_dict()["param_groups"])
    with pytest.raises(KeyMismatchError, match=r"is a \S+, and this optimizer a \S+: it would not"):
        anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
    assert torch.equal(other.weight, weight)
    assert its_optimizer.state_dict()["param_groups"] == groups


def test_a_subclass_and_a_moved_class_take_the_state(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = OwnState(model.parameters())
    train(model, optimizer)
    anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
    moved = type("OwnState", (OwnState,), {"__module__": "__main__", "__qualname__": "OwnState"})
    for kind in (OwnState2, moved):
        other = kind(model.parameters())
        anyrig.load(tmp_path / "a", model=model, optimizer=other)
        assert torch.equal(
            other.state[model.weight]["exact"], optimizer.state[model.weight]["exact"]
        )


def test_a_lost_option_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    anyrig.save(tmp_path / "a", model=model, optimizer=OwnState(model.parameters()))

    class Newer(OwnState):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters)
            self.defaults["warmup"] = 3
            self.param_groups[0]["warmup"] = 3

    optimizer = Newer(model.parameters())
    with pytest.raises(KeyMismatchError, match=r"has no option warmup, which this Newer reads"):
        anyrig.load(tmp_path / "a", model=model, optimizer=optimizer)
    assert optimizer.param_groups[0]["warmup"] == 3
