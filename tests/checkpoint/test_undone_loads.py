"""A load that fails half way, in code of the program or of a library, leaves all as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

import anyrig
from anyrig.checkpoint.integrity import check_integrity
from anyrig.errors import CheckpointError


class BrokenError(Exception):
    """Raised by the program's own code during a load."""


class OwnCopy(nn.Linear):
    """Overrides how it is loaded, and fails after writing."""

    fails = False

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if self.fails:
            raise BrokenError("own copy")


class ReplacesParameter(nn.Linear):
    """Puts new parameters in the place of its own, and new memory under an old one."""

    fails = False

    def _load_from_state_dict(self, state: Any, prefix: str, *args: Any) -> None:
        if self.fails:
            self.weight = nn.Parameter(state[f"{prefix}weight"].clone())
            self.bias.data = state[f"{prefix}bias"].clone()
            self.loaded = True
            raise BrokenError("replaced parameter")
        super()._load_from_state_dict(state, prefix, *args)


class ExtraState(nn.Linear):
    """Refuses its extra state."""

    fails = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.vocabulary = ["a"]

    def get_extra_state(self) -> Any:
        return list(self.vocabulary)

    def set_extra_state(self, state: Any) -> None:
        self.vocabulary[:] = state  # in place, so that no attribute is replaced
        if self.fails and state != ["a"]:
            raise BrokenError("extra state")


class DerivesBuffer(nn.Linear):
    """Computes a buffer that is not saved from the weight that it loads, and fails then."""

    fails = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("sums", torch.zeros(self.out_features), persistent=False)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.sums.copy_(self.weight.detach().sum(1))
        if self.fails:
            raise BrokenError("derived buffer")


class AddsEntry(nn.Linear):
    """Has an entry in its state dict that it cannot load, which is computed from its weight."""

    fails = False

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}noise"] = torch.full((2,), float(self.fails))


def add_hook(model: nn.Module, kind: str) -> None:
    def fail(*_: Any) -> None:
        raise BrokenError(kind)

    getattr(model, f"register_load_state_dict_{kind}_hook")(fail)


class FailingSGD(torch.optim.SGD):
    """Fails at the end of a load."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        raise BrokenError("optimizer")


class FailingScheduler(StepLR):
    """Fails at the end of a load that is not of its own state."""

    def load_state_dict(self, state_dict: Any) -> None:
        own = self.last_epoch
        super().load_state_dict(state_dict)
        if state_dict["last_epoch"] != own:
            raise BrokenError("scheduler")


def make(kind: str, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    layers = {"copy": OwnCopy, "replaces": ReplacesParameter, "extra": ExtraState}
    layers |= {"derives": DerivesBuffer, "adds": AddsEntry}
    layer = layers.get(kind, nn.Linear)(3, 3)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), layer, nn.Linear(3, 3))
    optimizer_kind = FailingSGD if kind == "optimizer" else torch.optim.SGD
    optimizer = optimizer_kind(model.parameters(), 0.1, momentum=0.9)
    scheduler = (FailingScheduler if kind == "scheduler" else StepLR)(optimizer, 2)
    for _ in range(seed + 1):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    critic = nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (seed + 1))
    return {
        "model": model,
        "critic": critic,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
    }


def picture(objects: dict[str, Any]) -> dict[str, Any]:
    """Return every value of the objects, the places of the tensors, and the random numbers."""
    found: dict[str, Any] = {}
    for name, each in objects.items():
        found[name] = copy.deepcopy(each.state_dict())
        if isinstance(each, nn.Module):
            found[f"{name} places"] = [(id(p), p.data_ptr()) for p in each.parameters()]
            found[f"{name} buffers"] = [buffer.clone() for buffer in each.buffers()]
    found["attributes"] = [sorted(vars(each)) for each in objects["model"].modules()]
    found["random"] = (random.getstate(), torch.get_rng_state(), np.random.get_state()[1])
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return bool(np.all(one == other))


KINDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "copy": lambda objects: setattr(objects["model"][2], "fails", True),
    "replaces": lambda objects: setattr(objects["model"][2], "fails", True),
    "extra": lambda objects: setattr(objects["model"][2], "fails", True),
    "derives": lambda objects: setattr(objects["model"][2], "fails", True),
    "adds": lambda objects: setattr(objects["model"][2], "fails", True),
    "pre hook": lambda objects: add_hook(objects["model"][3], "pre"),
    "post hook": lambda objects: add_hook(objects["model"][0], "post"),
    "hook of the second module": lambda objects: add_hook(objects["critic"], "post"),
    "optimizer": lambda objects: None,
    "optimizer's hook": lambda objects: objects["optimizer"].register_load_state_dict_post_hook(
        lambda _: 1 / 0
    ),
    "scheduler": lambda objects: None,
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_as_before(kind: str, tmp_path: Path) -> None:
    saved = make(kind, 1)
    if kind == "extra":
        saved["model"][2].vocabulary = ["b"]
    anyrig.save(tmp_path / "a", **saved)
    objects = make(kind, 2)
    KINDS[kind](objects)
    before = picture(objects)
    with pytest.raises(CheckpointError, match=r"Nothing was loaded"):
        anyrig.load(tmp_path / "a", **objects)
    after = picture(objects)
    assert [name for name in before if not same(before[name], after[name])] == []


def test_the_error_names_the_object_and_its_own_error(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a", **make("copy", 1))
    objects = make("copy", 2)
    objects["model"][2].fails = True
    with pytest.raises(CheckpointError, match=r"the model refuses its state .*: BrokenError: own"):
        anyrig.load(tmp_path / "a", **objects)


@pytest.mark.parametrize("change", [{"seed": "no number"}, {"step": None}, {"logical_shards": "x"}])
def test_an_altered_state_of_logical_shards_changes_nothing(
    change: dict[str, Any], tmp_path: Path
) -> None:
    model = anyrig.spread(nn.Linear(3, 3), "cpu", plan=anyrig.Exact(2), loss=nn.MSELoss())
    state = model._engine.state
    altered = {**state.as_state(), **change}

    class Altered(type(state)):  # type: ignore[misc]
        def as_state(self) -> Any:
            return altered

    saved = anyrig.spread(nn.Linear(3, 3), "cpu", plan=anyrig.Exact(2), loss=nn.MSELoss())
    saved._engine.state = Altered(**state.as_state())
    folder = anyrig.save(tmp_path / "a", model=saved)
    before, numbers = copy.deepcopy(dict(model.state_dict())), torch.get_rng_state()
    with pytest.raises(CheckpointError, match=r"states\['exact-state'\] was altered"):
        anyrig.load(folder, model=model, random_numbers=True)
    assert same(before, dict(model.state_dict()))
    assert torch.equal(numbers, torch.get_rng_state())
    assert check_integrity(folder)[0].findings
