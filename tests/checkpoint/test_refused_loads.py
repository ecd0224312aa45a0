"""What cannot be saved or loaded is refused and changes nothing; damage is found."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import assert_same, flat, make_model, train
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

import anyrig
from anyrig.errors import CheckpointDamagedError, CheckpointError, KeyMismatchError


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
