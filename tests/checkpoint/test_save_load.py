"""What was saved is loaded: every kind of object and value, where the objects are."""

from __future__ import annotations

import json
import math
import random
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.errors import CheckpointDamagedError, CheckpointError, KeyMismatchError


def make_model(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    device = next(model.parameters()).device
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4, device=device)).square().mean().backward()
        optimizer.step()


def flat(state: Any, name: str = "") -> dict[str, Any]:
    if isinstance(state, dict):
        return {k: v for key, each in state.items() for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(state, (list, tuple)):
        return flat(dict(enumerate(state)), name)
    return {name: state}


def assert_same(one: Any, other: Any) -> None:
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, Tensor):
            assert torch.equal(value.cpu(), other[name].cpu()), name
        else:
            assert value == other[name], name


OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "plain SGD": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, centered=True),
    "tensor lr": lambda parameters: torch.optim.Adam(parameters, torch.tensor(0.01)),
}


class TestObjects:
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    @pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "used"])
    def test_model_and_optimizer_go_on_as_before(
        self, kind: str, fresh: bool, tmp_path: Path
    ) -> None:
        model = make_model()
        optimizer = OPTIMIZERS[kind](model.parameters())
        train(model, optimizer)
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer, step=3)
        other = make_model()
        its_optimizer = OPTIMIZERS[kind](other.parameters())
        if not fresh:
            train(other, its_optimizer)
        places = [each.data_ptr() for each in other.parameters()]
        found = anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
        assert found.step == 3
        assert [each.data_ptr() for each in other.parameters()] == places
        assert_same(model.state_dict(), other.state_dict())
        assert_same(optimizer.state_dict(), its_optimizer.state_dict())
        for each, its in ((model, optimizer), (other, its_optimizer)):
            torch.manual_seed(5)
            train(each, its)
        assert_same(model.state_dict(), other.state_dict())

    def test_saving_changes_nothing(self, tmp_path: Path) -> None:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        before = torch.get_rng_state()
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
        assert not optimizer.state
        assert torch.equal(torch.get_rng_state(), before)
        anyrig.load(tmp_path / "a", model=model, optimizer=optimizer)
        assert not optimizer.state

    def test_optimizer_state_that_belongs_to_no_parameter_goes_on(self, tmp_path: Path) -> None:
        model = make_model()
        optimizer, other = (torch.optim.SGD(model.parameters()) for _ in range(2))
        optimizer.state["searches"] = {"count": 7}
        anyrig.save(tmp_path / "a", optimizer=optimizer)
        anyrig.load(tmp_path / "a", optimizer=other)
        assert other.state["searches"] == {"count": 7}

    def test_groups_are_matched_by_name(self, tmp_path: Path) -> None:
        model, other = make_model(), make_model()

        def optimizer_of(model: nn.Sequential, *order: int) -> torch.optim.Optimizer:
            first = [[*model.parameters()][index] for index in order]
            rest = [each for each in model.parameters() if all(each is not one for one in first)]
            groups = [{"params": first, "lr": 0.1}, {"params": rest, "lr": 0.2}]
            return torch.optim.Adam(groups)

        optimizer = optimizer_of(model, 0, 1)
        train(model, optimizer)
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
        swapped = optimizer_of(other, 1, 0)
        anyrig.load(tmp_path / "a", model=other, optimizer=swapped)
        assert torch.equal(
            swapped.state[other[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"]
        )
        with pytest.raises(KeyMismatchError, match=r"group 0 of the Adam in .* has no 1\.weight"):
            anyrig.load(tmp_path / "a", model=other, optimizer=optimizer_of(other, 0, 2))

    def test_schedulers_scaler_and_several_optimizers(self, tmp_path: Path) -> None:
        def make() -> dict[str, Any]:
            model = make_model()
            optimizers = {
                "first": torch.optim.Adam(model[0].parameters(), 0.1),
                "last": torch.optim.SGD(model[1:].parameters(), 0.1, momentum=0.5),
            }
            cosine = CosineAnnealingLR(optimizers["first"], 10)
            steps = SequentialLR(
                optimizers["last"],
                [LambdaLR(optimizers["last"], lambda n: 0.5**n) for _ in range(2)],
                [2],
            )
            return {
                "model": model,
                "optimizer": optimizers,
                "scheduler": [cosine, steps],
                "scaler": torch.amp.GradScaler("cpu", init_scale=4.0),
            }

        one, other = make(), make()
        for optimizer in one["optimizer"].values():
            train(one["model"], optimizer)
        for scheduler in one["scheduler"]:
            scheduler.step()
            scheduler.step()
        one["scaler"].scale(torch.ones(1))
        one["scaler"].update(2.0)
        path = anyrig.save(tmp_path / "a", **one)
        assert (path / "optimizer.first.safetensors").exists()
        anyrig.load(tmp_path / "a", **other)
        for key in ("first", "last"):
            assert_same(one["optimizer"][key].state_dict(), other["optimizer"][key].state_dict())
        for mine, its in zip(one["scheduler"], other["scheduler"], strict=True):
            assert_same(mine.state_dict(), its.state_dict())
        assert other["scaler"].get_scale() == 2.0

    def test_plain_values_and_objects_with_a_state(self, tmp_path: Path) -> None:
        values = {"epoch": 3, "curve": [0.5, (1, "b")], "mask": torch.tensor([True]), "none": None}
        average = torch.optim.swa_utils.AveragedModel(make_model())
        path = anyrig.save(tmp_path / "a", step=9, average=average, **values)
        assert path.name == "000001-step-9"
        other = torch.optim.swa_utils.AveragedModel(make_model())
        found = anyrig.load(tmp_path / "a", average=other)
        assert_same(average.state_dict(), other.state_dict())
        assert_same({name: found[name] for name in values}, values)
        assert found.get("missing", 5) == 5
        with pytest.raises(KeyError, match="has no value 'missing'; it has curve, epoch"):
            found["missing"]

    def test_several_modules_have_a_file_each(self, tmp_path: Path) -> None:
        def make() -> dict[str, Any]:
            model, critic = make_model(), make_model(3)
            optimizer = torch.optim.Adam([*critic.parameters(), *model.parameters()])
            return {"model": model, "critic": critic, "optimizer": optimizer}

        one, other = make(), make()
        train(one["model"], one["optimizer"])
        train(one["critic"], one["optimizer"])
        path = anyrig.save(tmp_path / "a", **one)
        assert_same(load_file(path / "critic.safetensors"), dict(one["critic"].state_dict()))
        anyrig.load(path, **other)
        for name, value in one.items():
            assert_same(value.state_dict(), other[name].state_dict())
        with pytest.raises(KeyMismatchError, match=rf"the critic in {path} has 0.weight in the sh"):
            anyrig.load(path, critic=make_model(4))

    def test_a_scaler_that_is_switched_off(self, tmp_path: Path) -> None:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        anyrig.save(tmp_path / "a", scaler=scaler)
        anyrig.load(tmp_path / "a", scaler=scaler)

    def test_numpy_s_numbers_become_python_s(self, tmp_path: Path) -> None:
        anyrig.save(tmp_path / "a", losses=[np.float32(0.5), np.int64(3)], step=np.int64(2))
        found = anyrig.load(tmp_path / "a")
        assert [*map(type, found["losses"])] == [float, int]
        assert (found["losses"], found.step) == ([0.5, 3], 2)

    def test_a_series_may_be_named_by_a_number(self, tmp_path: Path) -> None:
        anyrig.save(tmp_path / "1234567", step=1)
        anyrig.save(tmp_path / "1234567", step=2)
        assert anyrig.load(tmp_path / "1234567").step == 2
        empty = tmp_path / "7654321"
        empty.mkdir()
        with pytest.raises(CheckpointDamagedError, match="is not a checkpoint, or its save did"):
            anyrig.load(empty)

    def test_the_default_device_does_not_matter(self, tmp_path: Path) -> None:
        model, other = make_model(), make_model()
        with torch.device("meta"):
            anyrig.save(tmp_path / "a", model=model, value=torch.ones(2, device="cpu"))
            found = anyrig.load(tmp_path / "a", model=other)
        assert_same(model.state_dict(), other.state_dict())
        assert found["value"].device.type == "cpu"

    def test_random_numbers_go_on(self, tmp_path: Path) -> None:
        anyrig.save(tmp_path / "a")

        def draw() -> tuple[float, ...]:
            return random.random(), float(np.random.rand()), float(torch.rand(()))

        drawn = draw()
        random.gauss(0, 1)
        assert anyrig.load(tmp_path / "a", random_numbers=True).left == ()
        assert draw() == drawn
        anyrig.load(tmp_path / "a")
        assert draw() != drawn

    @pytest.mark.parametrize("given", [None, False])
    def test_random_numbers_go_on_with_an_optimizer(
        self, given: bool | None, tmp_path: Path
    ) -> None:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        anyrig.save(tmp_path / "a", optimizer=optimizer)
        drawn = torch.rand(())
        anyrig.load(tmp_path / "a", optimizer=optimizer, random_numbers=given)
        assert (torch.rand(()) == drawn) == (given is None)

    @pytest.mark.parametrize("given", ["model", "scheduler", "scaler", "loader", "critic"])
    def test_random_numbers_stay_without_an_optimizer(self, given: str, tmp_path: Path) -> None:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = TensorDataset(torch.arange(4))
        objects: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": CosineAnnealingLR(optimizer, 3),
            "scaler": torch.amp.GradScaler("cpu"),
            "loader": anyrig.distribute(DataLoader(data, 2)),
            "critic": make_model(3),
        }
        anyrig.save(tmp_path / "a", **objects)

        def draw() -> tuple[float, ...]:
            return random.random(), float(np.random.rand()), float(torch.rand(()))

        saved = draw()
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        expected = draw()
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        assert anyrig.load(tmp_path / "a", **{given: objects[given]}).left == ()
        assert draw() == expected
        anyrig.load(tmp_path / "a", model=model, optimizer=optimizer)
        assert draw() == saved

    def test_best_and_kept_checkpoints(self, tmp_path: Path) -> None:
        model = nn.Linear(1, 1, bias=False)
        for step, metric in enumerate((0.3, 0.9, 0.5, 0.4)):
            nn.init.constant_(model.weight, step)
            anyrig.save(tmp_path / "a", model=model, step=step, metric=metric, best="max", keep=2)
        names = sorted(path.name for path in (tmp_path / "a").iterdir())
        assert names == ["000002-step-1", "000003-step-2", "000004-step-3"]
        found = anyrig.load(tmp_path / "a", model=model, which="best")
        assert (found.step, found.metric, model.weight.item()) == (1, 0.9, 1.0)
        assert anyrig.load(tmp_path / "a", model=model).step == 3
        assert anyrig.load(tmp_path / "a" / "000003-step-2", model=model).step == 2


class TestModelFiles:
    def test_are_read_by_other_tools(self, tmp_path: Path) -> None:
        model = make_model().to(torch.bfloat16)
        path = anyrig.save(tmp_path / "a", model=model)
        assert_same(load_file(path / "model.safetensors"), dict(model.state_dict()))

    def test_tied_parameters_are_written_once(self, tmp_path: Path) -> None:
        def tied() -> nn.ModuleDict:
            model = nn.ModuleDict({"embed": nn.Embedding(50, 8), "head": nn.Linear(8, 50, False)})
            model["head"].weight = model["embed"].weight
            return model

        model, other, third = tied(), tied(), tied()
        path = anyrig.save(tmp_path / "a", model=model)
        assert (path / "model.safetensors").stat().st_size < 50 * 8 * 4 + 1000
        anyrig.load(tmp_path / "a", model=other)
        load_model(third, path / "model.safetensors")
        assert_same(model.state_dict(), other.state_dict())
        assert_same(model.state_dict(), third.state_dict())

    def test_large_models_have_several_files_and_an_index(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("anyrig.checkpoint.tensor_files.LARGEST_FILE_BYTES", 100)
        model, other = make_model(), make_model()
        path = anyrig.save(tmp_path / "a", model=model)
        index = json.loads((path / "model.safetensors.index.json").read_text())
        files = set(index["weight_map"].values())
        assert len(files) > 2
        assert index["weight_map"].keys() == model.state_dict().keys()
        anyrig.load(tmp_path / "a", model=other)
        assert_same(model.state_dict(), other.state_dict())

    def test_names_do_not_depend_on_wrappers(self, tmp_path: Path) -> None:
        model = make_model()
        compiled = torch.compile(nn.DataParallel(model), backend="eager")
        optimizer = torch.optim.Adam(compiled.parameters())
        train(model, optimizer)
        path = anyrig.save(tmp_path / "a", model=compiled, optimizer=optimizer)
        assert load_file(path / "model.safetensors").keys() == model.state_dict().keys()
        other = make_model()
        other[0] = torch.compile(other[0], backend="eager")
        other[3] = checkpoint_wrapper(other[3])
        its_optimizer = torch.optim.Adam(other.parameters())
        anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
        assert_same([*model.parameters()], [*other.parameters()])
        assert_same(optimizer.state_dict(), its_optimizer.state_dict())

    def test_odd_tensors_and_extra_states(self, tmp_path: Path) -> None:
        class Odd(nn.Module):
            def __init__(self, number: int) -> None:
                super().__init__()
                self.register_buffer("complex", torch.full((2,), number * 1j).to(torch.complex128))
                self.register_buffer("scalar", torch.tensor(number))
                self.register_buffer("empty", torch.empty(0, 3))
                self.register_buffer("strided", torch.arange(6.0).view(2, 3).t() * number)
                self.number = number

            def get_extra_state(self) -> dict[str, int]:
                return {"number": self.number}

            def set_extra_state(self, state: dict[str, int]) -> None:
                self.number = state["number"]

        other = Odd(1)
        anyrig.save(tmp_path / "a", model=Odd(7))
        anyrig.load(tmp_path / "a", model=other)
        assert other.number == 7
        assert_same(other.state_dict(), Odd(7).state_dict())


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda model: model.append(nn.Linear(1, 1)), r"has no 4.bias, 4.weight, which this"),
            (lambda model: model.__delitem__(3), r"has 3.bias, 3.weight, which this Sequential"),
            (
                lambda model: make_model(5),
                r"has 0.weight in the shape \[8, 4\] instead of \[5, 4\]",
            ),
        ],
        ids=["missing", "unexpected", "shape"],
    )
    def test_another_model_changes_nothing(self, change: Any, message: str, tmp_path: Path) -> None:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = CosineAnnealingLR(optimizer, 10)
        train(model, optimizer)
        scheduler.step()
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer, scheduler=scheduler)
        torch.rand(1)
        other = make_model()
        other = change(other) or other
        its_optimizer = torch.optim.Adam(make_model().parameters())
        its_scheduler = CosineAnnealingLR(its_optimizer, 10)
        before = flat([other.state_dict(), its_optimizer.state_dict(), its_scheduler.state_dict()])
        before = {k: v.clone() if isinstance(v, Tensor) else v for k, v in before.items()}
        numbers = torch.get_rng_state()
        with pytest.raises(KeyMismatchError, match=message):
            anyrig.load(tmp_path / "a", scheduler=its_scheduler, model=other)
        after = [other.state_dict(), its_optimizer.state_dict(), its_scheduler.state_dict()]
        assert_same(before, flat(after))
        assert torch.equal(numbers, torch.get_rng_state())

    def test_a_state_that_an_object_does_not_take_changes_nothing(self, tmp_path: Path) -> None:
        class Picky:
            def state_dict(self) -> dict[str, Any]:
                return {"a": 1}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                raise ValueError("not this one")

        model = make_model()
        optimizer = torch.optim.SGD(model.parameters())
        scheduler = CosineAnnealingLR(optimizer, 10)
        optimizer.step()
        scheduler.step()
        anyrig.save(tmp_path / "a", model=model, scheduler=scheduler, picky=Picky())
        before = [each.clone() for each in model.parameters()]
        nn.init.zeros_(model[0].weight)
        scheduler = CosineAnnealingLR(torch.optim.SGD(model.parameters()), 10)
        with pytest.raises(CheckpointError, match="this Picky refuses the state of picky in"):
            anyrig.load(tmp_path / "a", model=model, scheduler=scheduler, picky=Picky())
        assert scheduler.last_epoch == 0
        assert not torch.equal(model[0].weight, before[0])

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"config": object()}, r"the value config cannot be saved: it is of type builtins.obj"),
            ({"a": {"b": [1, Path()]}}, r"the value a\['b'\]\[1\] cannot be saved: it is of type"),
            ({"loader": [1, 2]}, r"loader is a list, .*anyrig.distribute\(loader\) instead"),
            ({"loader": DataLoader([1])}, r"DataLoader, .*anyrig.distribute\(loader\) instead"),
            ({"model": {"a": 1}}, r"model is a dict, and must be a torch.nn.Module; save a state"),
            ({"scheduler": 5}, r"scheduler is a int, which has no state_dict\(\)"),
            ({"step": 1.5}, r"step must be a whole number; got 1.5"),
            ({"keep": 0}, r"keep is the number of checkpoints to keep, at least 1; got 0"),
            ({"metric": 0.5}, r"metric=0.5 and best=None go together"),
            ({"metric": math.nan, "best": "max"}, r"metric is not a number \(NaN\), so no checkp"),
            ({"metric": 0.5, "best": "high"}, r"best must be 'max' or 'min'; got 'high'"),
        ],
        ids=[
            "object",
            "nested",
            "list",
            "DataLoader",
            "dict",
            "5",
            "1.5",
            "0",
            "metric",
            "nan",
            "high",
        ],
    )
    def test_what_cannot_be_saved_is_named(
        self, given: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(CheckpointError, match=message):
            anyrig.save(tmp_path / "a", **given)
        assert not (tmp_path / "a").exists()

    def test_what_was_not_saved_is_named(self, tmp_path: Path) -> None:
        path = anyrig.save(tmp_path / "a", step=1)
        for given, what in (
            ({"model": make_model()}, "model"),
            ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, "optimizer"),
            ({"ema": make_model()}, "ema"),
            ({"scheduler": torch.amp.GradScaler("cpu")}, "scheduler"),
        ):
            with pytest.raises(CheckpointError, match=f"{path} has no state of this {what}"):
                anyrig.load(tmp_path / "a", **given)
        position = anyrig.save(tmp_path / "b", loader=anyrig.distribute(DataLoader([1])))
        with pytest.raises(CheckpointError, match=r"no load_state_dict\(\), so it has no position"):
            anyrig.load(position, loader=DataLoader([1]))
        with pytest.raises(CheckpointError, match=r"load\(epoch=…\) takes an object with load_sta"):
            anyrig.load(position, epoch=1)
        with pytest.raises(CheckpointError, match="has no checkpoint with a metric"):
            anyrig.load(tmp_path / "a", which="best")
        with pytest.raises(CheckpointError, match="does not exist, so it has no checkpoints"):
            anyrig.load(tmp_path / "c")
        torch.save({}, tmp_path / "plain.pt")
        with pytest.raises(CheckpointError, match=r"is a file, .* anyrig.checkpoint.read_foreign"):
            anyrig.load(tmp_path / "plain.pt", model=make_model())


class TestDamage:
    def damage(self, tmp_path: Path, name: str, size: int) -> tuple[nn.Module, Path]:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer)
        for step in (1, 2):
            path = anyrig.save(tmp_path / "a", model=model, optimizer=optimizer, step=step)
        (path / name).write_bytes((path / name).read_bytes()[:size])
        return model, path

    @pytest.mark.parametrize(
        "name", ["model.safetensors", "optimizer.safetensors", "values.pt", "manifest.json"]
    )
    @pytest.mark.parametrize("size", [0, 20, -1])
    def test_the_one_before_is_loaded_with_a_warning_that_names_the_file(
        self, name: str, size: int, tmp_path: Path
    ) -> None:
        model, path = self.damage(tmp_path, name, size)
        with pytest.warns(
            RuntimeWarning, match=rf"{path}/{name} .*: loading .*/000001-step-1 inst"
        ):
            assert anyrig.load(tmp_path / "a", model=model).step == 1
        with pytest.raises(CheckpointDamagedError, match=rf"{path}/{name} "):
            anyrig.load(path, model=model)

    def test_random_damage_is_found(self, tmp_path: Path) -> None:
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer)
        path = anyrig.save(tmp_path / "a", model=model, optimizer=optimizer, note=[1, {"a": "b"}])
        draw = random.Random(0)
        whole = {each.name: each.read_bytes() for each in path.iterdir()}
        for _ in range(100):
            name = draw.choice(sorted(whole))
            data = bytearray(whole[name])
            place = draw.randrange(len(data))
            kind = draw.choice(["flip", "cut", "zero", "insert"])
            if kind == "flip":
                data[place] ^= 1 << draw.randrange(8)
            elif kind == "cut":
                del data[place:]
            elif kind == "zero":
                data[place : place + 64] = bytes(len(data[place : place + 64]))
            else:
                data.insert(place, draw.randrange(256))
            (path / name).write_bytes(data)
            is_whole = bytes(data) == whole[name]
            with nullcontext() if is_whole else pytest.raises(CheckpointDamagedError, match=name):
                anyrig.load(path, model=model, optimizer=optimizer)
            if not is_whole:  # without hashes: an error of ours, or nothing is noticed
                with suppress(CheckpointError):
                    anyrig.load(path, model=model, optimizer=optimizer, verify=False)
            (path / name).write_bytes(whole[name])

    def test_all_damaged(self, tmp_path: Path) -> None:
        model, path = self.damage(tmp_path, "values.pt", 5)
        (path.parent / "000001-step-1" / "values.pt").unlink()
        with pytest.raises(CheckpointDamagedError, match=r"has no whole checkpoint\. .*values.pt"):
            anyrig.load(tmp_path / "a", model=model)


@pytest.mark.gpus(2)
class TestDevices:
    def test_loads_go_to_where_the_objects_are(self, tmp_path: Path) -> None:
        model = make_model().to("cuda:1")
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer)
        torch.rand(1, device="cuda:1")
        anyrig.save(tmp_path / "a", model=model, optimizer=optimizer)
        drawn = torch.rand(3, device="cuda:1").cpu()
        for device in ("cpu", "cuda:0", "cuda:1"):
            other = make_model().to(device)
            its_optimizer = torch.optim.AdamW(other.parameters())
            anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
            assert_same(model.state_dict(), other.state_dict())
            assert_same(optimizer.state_dict(), its_optimizer.state_dict())
            moments = its_optimizer.state[other[0].weight]["exp_avg"]
            assert moments.device == other[0].weight.device == torch.device(device)
        assert torch.equal(torch.rand(3, device="cuda:1").cpu(), drawn)

    @pytest.mark.filterwarnings("ignore::anyrig.parallel.BatchStatisticsWarning")
    def test_a_model_spread_in_one_process(self, tmp_path: Path) -> None:
        model = make_model()
        spread = anyrig.spread(model.to("cuda:0"), "cuda:0,1")
        optimizer = torch.optim.Adam(spread.parameters())
        train(spread, optimizer)
        path = anyrig.save(tmp_path / "a", model=spread, optimizer=optimizer)
        assert load_file(path / "model.safetensors").keys() == make_model().state_dict().keys()
        other = anyrig.spread(make_model().to("cuda:1"), "cuda:1,0")
        its_optimizer = torch.optim.Adam(other.parameters())
        train(other, its_optimizer)
        anyrig.load(tmp_path / "a", model=other, optimizer=its_optimizer)
        inputs = torch.randn(6, 4)
        for each, its in ((spread, optimizer), (other, its_optimizer)):
            its.zero_grad()
            each(inputs).square().mean().backward()
            its.step()
        assert_same(spread.state_dict(), other.state_dict())


def test_tensor_dataset_loader_position_needs_distribute(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.arange(10)), 2)
    distributed = anyrig.distribute(loader)
    next(iter(distributed))
    anyrig.save(tmp_path / "a", loader=distributed)
    other = anyrig.distribute(loader)
    anyrig.load(tmp_path / "a", loader=other)
    assert [batch[0].tolist() for batch in other] == [[2, 3], [4, 5], [6, 7], [8, 9]]
