"""A training run that was stopped and resumed ends with the same bits as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resumed_training import train
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import anyrig
from anyrig.errors import CheckpointDamagedError, CheckpointError
from forked_programs import run_anyrig


@pytest.mark.parametrize("workers", [0, 2])
def test_stops_in_the_middle_and_at_the_ends_of_epochs(workers: int, tmp_path: Path) -> None:
    expected = train(tmp_path / "never", None, workers=workers)
    for stop in (1, 7, 10, 14, 20):
        assert train(tmp_path / "a", stop, workers=workers) == {}
    resumed = train(tmp_path / "a", None, workers=workers)
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        assert torch.equal(value, resumed[name]), name


RESTARTED = """
import os, sys
from pathlib import Path
import torch
import anyrig
sys.path.insert(0, sys.argv[1])
from resumed_training import train

work = Path(sys.argv[2])
anyrig.Rig.detect()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    train(work / "run", 10, anyrig.spread, workers=0)
    anyrig.barrier()
    os._exit(1 if os.environ["RANK"] == "1" else 0)
resumed = train(work / "run", None, anyrig.spread, workers=0)
expected = train(work / "never", None, anyrig.spread, workers=0)
assert all(torch.equal(value, resumed[name]) for name, value in expected.items())
anyrig.print_once("the same bits")
"""


def test_a_restarted_group_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    here = str(Path(__file__).parent)
    flags = ("--device", "cpu", "--max-restarts", "1", "--nproc-per-device", "2")
    done = run_anyrig("run", *flags, str(script), here, str(tmp_path), timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same bits") == 1


def test_a_series_without_checkpoints_begins(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    assert anyrig.resume(tmp_path / "none", model=model) is None
    assert anyrig.resume(tmp_path, model=model) is None
    assert anyrig.resume(tmp_path / "1234567", model=model) is None  # may be a series' name
    assert [*tmp_path.iterdir()] == []


def test_damaged_checkpoints_are_no_beginning(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    folder = anyrig.save(tmp_path, model=model)
    with pytest.raises(CheckpointError, match="single checkpoint"):
        anyrig.resume(folder, model=model)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointDamagedError, match="manifest"):
        anyrig.resume(tmp_path, model=model)


def numbers_of(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in batches]


def make_loader(size: int = 10, batch_size: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(size)), batch_size, shuffle=True, **options)


class TestPosition:
    def test_counts_what_the_user_has_received(self) -> None:
        torch.manual_seed(1)
        loader: Any = anyrig.distribute(make_loader(num_workers=2, prefetch_factor=2))
        state = loader.state_dict()
        epochs = [numbers_of(loader), numbers_of(loader)]
        torch.manual_seed(2)
        other: Any = anyrig.distribute(make_loader())
        for received in (0, 1, 4, 5, 7, 10):
            epoch, batch = divmod(received, 5)
            loader.load_state_dict(state)
            iterator = iter(loader)
            for index in range(received):
                if index == 5:
                    assert next(iterator, None) is None
                    iterator = iter(loader)
                next(iterator)
            other.load_state_dict(loader.state_dict())
            del iterator
            if received == 10:
                assert numbers_of(other) == []  # the user has not asked for the end yet
                assert other.epoch == 2
            elif batch == 0 and received:
                assert numbers_of(other) == []
                assert numbers_of(other) == epochs[epoch]
            else:
                assert numbers_of(other) == epochs[epoch][batch:]
                if epoch == 0:
                    assert numbers_of(other) == epochs[1]

    def test_a_loop_that_was_left_early_leaves_the_position_in_its_epoch(self) -> None:
        loader: Any = anyrig.distribute(make_loader())
        first = [batch[0].tolist() for batch, _ in zip(loader, range(2), strict=False)]
        assert len(first) == 2
        other: Any = anyrig.distribute(make_loader())
        other.load_state_dict(loader.state_dict())
        # zip takes a third batch before it finds that the range is over.
        assert sum(map(len, first + numbers_of(other))) == 8

    def test_set_epoch_keeps_the_resumed_position_in_its_epoch_only(self) -> None:
        loader: Any = anyrig.distribute(make_loader())
        whole = numbers_of(loader)
        loader.set_epoch(0, skip_batches=0)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert (state["epoch"], state["received"]) == (0, 1)
        loader.load_state_dict(state)
        loader.set_epoch(0)
        assert numbers_of(loader) == whole[1:]
        loader.set_epoch(0)
        assert numbers_of(loader) == whole
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert len(numbers_of(loader)) == 5

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (make_loader(12), "had 5 global batches in an epoch .* and has 6 now"),
            (make_loader(5, 1), "had 2 samples in a global batch .* and has 1 now"),
        ],
    )
    def test_other_batches_are_refused(self, other: Any, message: str) -> None:
        state = anyrig.distribute(make_loader()).state_dict()  # type: ignore[attr-defined]
        with pytest.raises(CheckpointError, match=message):
            anyrig.distribute(other).load_state_dict(state)

    def test_ranks_with_batches_of_their_own_must_be_as_many(self) -> None:
        loader: Any = anyrig.distribute(make_loader(), divided=True)
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(CheckpointError, match="saved by 2 ranks with own batches, and is load"):
            loader.load_state_dict({**state, "divided_ranks": 2})
        with pytest.raises(CheckpointError, match="saved by a loader of global batches, and is lo"):
            loader.load_state_dict(anyrig.distribute(make_loader()).state_dict())  # type: ignore[attr-defined]

    def test_another_loader_s_state_is_refused(self) -> None:
        loader: Any = anyrig.distribute(make_loader())
        with pytest.raises(CheckpointError, match=r"not saved by a loader .* entries _snapshot"):
            loader.load_state_dict({"_snapshot": {}})

    def test_of_an_iterable_dataset(self) -> None:
        class Numbers(IterableDataset[int]):
            def __iter__(self) -> Any:
                return iter(range(10))

        loader: Any = anyrig.distribute(DataLoader(Numbers(), 2))
        iterator = iter(loader)
        next(iterator)
        other: Any = anyrig.distribute(DataLoader(Numbers(), 2))
        other.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in other] == [[2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.gpus(1)
class TestPrefetched:
    def test_batches_that_are_copied_ahead_were_not_received(self) -> None:
        loader: Any = anyrig.distribute(make_loader(num_workers=2))
        ahead: Any = anyrig.prefetch(loader, "cuda:0", depth=3)
        iterator = iter(ahead)
        received = [next(iterator)[0].tolist() for _ in range(2)]
        assert loader.state_dict()["received"] > 2
        state = ahead.state_dict()
        assert (state["epoch"], state["received"]) == (0, 2)
        other: Any = anyrig.prefetch(anyrig.distribute(make_loader()), "cuda:0")
        other.load_state_dict(state)
        assert received + numbers_of(other) == received + numbers_of(iterator)
        assert ahead.state_dict() == {**state, "epoch": 1, "received": 0}
        ahead.load_state_dict(state)
        assert ahead.state_dict() == state

    def test_a_loader_without_a_state_has_none(self, tmp_path: Path) -> None:
        ahead = anyrig.prefetch(make_loader(), "cuda:0")
        assert not hasattr(ahead, "state_dict")
        with pytest.raises(CheckpointError, match=r"Iterate over anyrig.distribute\(loader\)"):
            anyrig.save(tmp_path / "a", loader=ahead)
