"""What was saved is loaded: every kind of object and value, where the objects are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_training import assert_same, make_model, train
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.errors import CheckpointDamagedError, KeyMismatchError

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
