"""What `load` returns, and what its arguments choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.checkpoint import BackgroundSaver
from anyrig.checkpoint.describe import CheckpointDescription, describe
from anyrig.checkpoint.savable_names import ARGUMENTS_OF_LOAD
from anyrig.errors import CheckpointDamagedError, CheckpointError, KeyMismatchError


def test_values_are_without_the_step(tmp_path: Path) -> None:
    path = anyrig.save(tmp_path / "a")
    found = anyrig.load(tmp_path / "a")
    assert (found.path, found.step, found.metric) == (path, None, None)
    assert (dict(found.values), found.left) == ({}, ())
    assert found.get("note") is None
    with pytest.raises(KeyError, match="has no value 'note'; it has none"):
        found["note"]
    anyrig.save(tmp_path / "a", step=0, metric=0.5, best="max", note=[1])
    found = anyrig.load(tmp_path / "a")
    assert (found.step, found.metric, dict(found.values)) == (0, 0.5, {"note": [1]})


def test_another_choice_is_refused(tmp_path: Path) -> None:
    anyrig.save(tmp_path / "a")
    with pytest.raises(CheckpointError, match="which must be 'latest' or 'best'; got 'newest'"):
        anyrig.load(tmp_path / "a", which="newest")


def test_without_hashes_only_sizes_are_compared(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    path = anyrig.save(tmp_path / "a", model=model) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for read in (anyrig.load, anyrig.resume):
        with pytest.raises(CheckpointDamagedError, match="was altered: its content does not mat"):
            read(tmp_path / "a", model=model)
        assert read(tmp_path / "a", model=model, verify=False) is not None
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointDamagedError, match=f"has {len(content) - 1} bytes, and"):
        anyrig.load(tmp_path / "a", model=model, verify=False)


class Counter:
    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def make(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1 * seed)
    data = DataLoader(TensorDataset(torch.arange(8)), 2)
    loader = anyrig.distribute(data)
    for _ in zip(range(seed), loader, strict=False):
        pass
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": StepLR(optimizer, seed),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**seed),
        "loader": loader,
        "critic": nn.Linear(seed, 1) if seed == 1 else nn.Linear(1, 1),
        "counter": Counter(seed),
    }


def facts(objects: dict[str, Any]) -> list[Any]:
    return [
        objects["model"].weight.tolist(),
        objects["critic"].weight.tolist(),
        objects["optimizer"].param_groups[0]["lr"],
        objects["scheduler"].step_size,
        objects["scaler"].get_scale(),
        objects["loader"].state_dict()["received"],
        objects["counter"].count,
    ]


@pytest.mark.parametrize("is_in_background", [False, True])
@pytest.mark.parametrize("read", [anyrig.load, anyrig.resume])
def test_every_argument_is_passed_on(read: Any, is_in_background: bool, tmp_path: Path) -> None:
    saved, loaded = make(1), make(3)
    options = {"step": 5, "metric": 0.25, "best": "min", "word": "kept"}
    if is_in_background:
        with BackgroundSaver(tmp_path) as saver:
            saver.save(**saved, **options)
    else:
        anyrig.save(tmp_path, **saved, **options)
    found = read(tmp_path, **loaded)
    assert (found.step, found.metric, found["word"]) == (5, 0.25, "kept")
    assert anyrig.load(tmp_path, which="best").step == 5
    assert facts(loaded) == facts(saved)


def test_several_in_a_list_are_named_by_their_positions(tmp_path: Path) -> None:
    def make_two(*rates: float) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([nn.Parameter(torch.ones(1))], rate) for rate in rates]

    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, 4.0)]
    path = anyrig.save(tmp_path, optimizer=make_two(0.1, 0.2), scaler=scalers)
    assert (path / "optimizer.0.safetensors").exists()
    assert (path / "optimizer.1.safetensors").exists()
    fresh = make_two(9, 9)
    again = [torch.amp.GradScaler("cpu") for _ in range(2)]
    anyrig.load(tmp_path, optimizer={"1": fresh[1], 0: fresh[0]}, scaler=again)
    assert [each.param_groups[0]["lr"] for each in fresh] == [0.1, 0.2]
    assert [each.get_scale() for each in again] == [2.0, 4.0]


@pytest.mark.parametrize("key", ["a.b", "a b", "a/b", "", "_-"])
def test_a_key_that_cannot_be_in_a_file_s_name_is_refused(key: str, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(CheckpointError, match="which becomes part of a file's name; use letters"):
        anyrig.save(tmp_path / "a", optimizer={key: optimizer})
    path = anyrig.save(tmp_path / "a", optimizer={"a-b_1": optimizer})
    assert (path / "optimizer.a-b_1.safetensors").exists()


@pytest.mark.parametrize("name", sorted({*ARGUMENTS_OF_LOAD} - {"path", "timeout_seconds"}))
def test_an_argument_of_load_names_values_and_no_objects(name: str, tmp_path: Path) -> None:
    anyrig.save(tmp_path, **{name: 3})
    assert anyrig.load(tmp_path)[name] == 3
    with pytest.raises(CheckpointError, match=f"is saved as {name}=, which is an argument of loa"):
        anyrig.save(tmp_path, **{name: Counter(1)})


@pytest.mark.parametrize("given", [{"best": "max"}, {"best": "min", "metric": None}])
def test_a_direction_without_a_metric_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"metric=None and best='m\w\w' go together"):
        anyrig.save(tmp_path / "a", **given)


@pytest.mark.parametrize("step", [0, 2**63 - 1])
def test_the_first_and_the_last_step(step: int, tmp_path: Path) -> None:
    assert anyrig.save(tmp_path, step=step).name == f"000001-step-{step}"
    assert anyrig.load(tmp_path).step == step
    with pytest.raises(CheckpointError, match="step must not be below 0; got -1"):
        anyrig.save(tmp_path, step=-1)


def test_an_optimizer_with_other_groups_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    anyrig.save(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    groups = [{"params": [model.weight]}, {"params": [model.bias]}]
    with pytest.raises(KeyMismatchError, match="has 1 groups of parameters, this optimizer 2"):
        anyrig.load(tmp_path, model=model, optimizer=torch.optim.SGD(groups, 0.1))


def test_a_module_and_an_optimizer_of_one_file_are_refused(tmp_path: Path) -> None:
    net = nn.Linear(1, 1)
    optimizer = {"a": torch.optim.SGD(net.parameters())}
    with pytest.raises(CheckpointError, match=r"the module 'optimizer\.a' and the optimizer 'a' w"):
        anyrig.save(tmp_path, optimizer=optimizer, **{"optimizer.a": net})
    assert [*tmp_path.iterdir()] == []


def test_a_module_s_name_may_have_200_characters(tmp_path: Path) -> None:
    name, net = "n" * 200, nn.Linear(1, 1)
    anyrig.save(tmp_path, **{name: net})
    weight = net.weight.item()
    nn.init.zeros_(net.weight)
    anyrig.load(tmp_path, **{name: net})
    assert net.weight.item() == weight
    with pytest.raises(CheckpointError, match="has 201 characters, more than 200"):
        anyrig.save(tmp_path, **{f"{name}n": net})


def test_a_value_that_is_a_view_does_not_bring_the_memory_behind_it(tmp_path: Path) -> None:
    path = anyrig.save(tmp_path, part=torch.zeros(1 << 18)[3:5])
    assert (path / "values.pt").stat().st_size < 100_000
    assert anyrig.load(tmp_path)["part"].shape == (2,)


def test_a_buffer_with_two_names_is_written_once(tmp_path: Path) -> None:
    def make(value: float) -> nn.Module:
        net, tensor = nn.Module(), torch.full((3,), value)
        net.register_buffer("first", tensor)
        net.register_buffer("second", tensor)
        return net

    path = anyrig.save(tmp_path, model=make(1))
    assert load_file(path / "model.safetensors").keys() == {"first"}
    other = make(2)
    anyrig.load(tmp_path, model=other)
    assert other.second is other.first
    assert (other.first == 1).all()


def test_a_module_without_shapes_gets_those_that_were_saved(tmp_path: Path) -> None:
    net, other = nn.Linear(5, 3), nn.LazyLinear(3)
    anyrig.save(tmp_path, model=net)
    anyrig.load(tmp_path, model=other)
    assert torch.equal(other.weight, net.weight)


def test_ten_of_many_names_are_listed(tmp_path: Path) -> None:
    net = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(12))
    anyrig.save(tmp_path, model=net)
    for count, end in ((2, r"9\.weight, which"), (1, r"8\.weight and 1 more, which")):
        with pytest.raises(
            KeyMismatchError, match=rf"has 1[01]?\.weight, .*{end} this ModuleList do"
        ):
            anyrig.load(tmp_path, model=net[:count])
    for count, end in (
        (10, r"9\.weight in the shape \S+ \S+ instead of \[2, 1\]\. Not"),
        (11, ", and 1 mo"),
    ):
        wide = nn.ModuleList(nn.Linear(1, 1 + (number < count), bias=False) for number in range(12))
        with pytest.raises(KeyMismatchError, match=end):
            anyrig.load(tmp_path, model=wide)


class OddState(nn.Module):
    """Returns a given state dict."""

    def __init__(self, state: dict[Any, Any]) -> None:
        super().__init__()
        self._own = state

    def state_dict(self, *_: Any, **__: Any) -> dict[Any, Any]:
        return self._own


class Reserved(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.ones(1)))


def two_in_one() -> nn.Module:
    net = nn.Module()
    net.register_parameter("weight", nn.Parameter(torch.ones(1)))
    net.add_module("_orig_mod", Reserved("weight"))
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (OddState({5: torch.ones(1)}), r"this OddState has the key 5, which is not a string"),
        (two_in_one(), "two tensors that are named 'weight'"),
        (Reserved("__metadata__"), "with the name '__metadata__', which safetensors reserves"),
        (Reserved("_extra_state"), r"load_state_dict\(\) takes _extra_state for what get_extra"),
    ],
)
def test_a_module_whose_names_cannot_be_kept_is_refused(
    net: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        anyrig.save(tmp_path, model=net)
    assert [*tmp_path.iterdir()] == []


def test_types_that_not_every_reader_knows_are_in_the_file_of_values(tmp_path: Path) -> None:
    common = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "complex64", "bool", "uint8", "int64")
    rare = ("uint16", "uint32", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    net, other = nn.Module(), nn.Module()
    for name in (*common, *rare, "complex128"):
        dtype: torch.dtype = getattr(torch, name)
        for module, fill in ((net, torch.ones), (other, torch.zeros)):
            bits = fill(dtype.itemsize, dtype=torch.uint8)
            module.register_buffer(f"a {name}", bits.view(dtype))
    path = anyrig.save(tmp_path, model=net)
    assert load_file(path / "model.safetensors").keys() == {f"a {name}" for name in common}
    anyrig.load(tmp_path, model=other)
    for name, value in other.state_dict().items():
        assert value.dtype == net.state_dict()[name].dtype
        assert (value.view(torch.uint8) == 1).all(), name
    shown = describe(path)
    assert isinstance(shown, CheckpointDescription)
    facts = {each.name: (each.dtype, each.file) for each in shown.tensors}
    assert facts == {
        name: (name[2:], "model.safetensors" if name[2:] in common else "values.pt")
        for name in net.state_dict()
    }
