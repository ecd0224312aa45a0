"""The checkpoints of a series: their numbers, which are kept, and which are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_checkpoints import content_of, names_in, save

from anyrig.checkpoint.describe import describe
from anyrig.checkpoint.series import Series
from anyrig.checkpoint.verify import verify_folder
from anyrig.errors import CheckpointError


class TestSeries:
    def test_numbers_go_up_and_names_have_the_step(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "runs" / "a")
        save(series, "a")
        save(series, "b", step=1200)
        assert names_in(series) == ["000001", "000002-step-1200"]

    def test_keeps_the_newest_and_the_best(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.9, 0.7, 0.6, float("nan")):
            save(series, str(metric), keep=2, metric=metric, best="max")
        assert names_in(series) == ["000002", "000004", "000005"]
        best = series.best()
        assert best is not None
        assert content_of(best.path) == "0.9"

    def test_the_lowest_metric_may_be_the_best(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.2, 0.7):
            save(series, str(metric), keep=1, metric=metric, best="min")
        assert names_in(series) == ["000002", "000003"]

    def test_damaged_folders_are_skipped_and_do_not_count(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for text in "abc":
            save(series, text)
        (series.folder / "000003" / "values.pt").write_bytes(b"")
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert content_of(found.path) == "b"
        assert [str(error) for error in damaged] == [
            f"{series.folder}/000003/values.pt has 0 bytes, and 1 were saved. Load another "
            "checkpoint of the series"
        ]
        save(series, "d", keep=2)
        assert names_in(series) == ["000002", "000003", "000004"]

    def test_a_flipped_bit_is_found_by_the_hash(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a")
        path = save(series, "b") / "model.safetensors"
        path.write_bytes(bytes([path.read_bytes()[0] ^ 4]) + path.read_bytes()[1:])
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert found.manifest.number == 1
        assert "model.safetensors was altered" in str(damaged[0])
        unhashed = series.latest(hashes=False)
        assert unhashed is not None
        assert unhashed.manifest.number == 2

    def test_a_folder_renamed_to_another_number_is_reported(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        save(series, "a", step=5)
        newest = save(series, "b", step=6)
        renamed = (series.folder / "000001-step-5").rename(series.folder / "000009-step-5")
        damaged: list[CheckpointError] = []
        found = series.latest(damaged=damaged)
        assert found is not None
        assert found.path == newest
        problem = f"{renamed} was renamed: it is save 1. Rename it to 000001-step-5"
        assert [str(error) for error in damaged] == [problem]
        assert [str(finding) for finding in verify_folder(renamed)] == [problem]
        assert verify_folder(newest) == ()
        entries = {entry.name: entry for entry in describe(series.folder).checkpoints}
        assert entries[renamed.name].problem == problem
        assert entries[newest.name].problem is None
        elsewhere = renamed.rename(tmp_path / "kept")  # a name without a number is no mistake
        assert verify_folder(elsewhere) == ()

    def test_a_missing_series_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="does not exist, so it has no checkpoints"):
            Series(tmp_path / "nothing").latest()

    def test_a_checkpoint_is_no_series(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        with pytest.raises(CheckpointError, match="save to the folder of its series"):
            save(Series(path), "b")

    def test_folders_are_sorted_by_number_the_newest_first(self, tmp_path: Path) -> None:
        names = ["1000000-step-1", "999999-step-2", "000002-step-1", "000002"]
        for name in (*sorted(names), "notes", "12345", ".tmp-000009-a"):
            (tmp_path / name).mkdir()
        assert [path.name for path in Series(tmp_path).folders()] == names

    def test_a_number_of_no_save_does_not_count_and_is_not_used(self, tmp_path: Path) -> None:
        for name in ("000001", "000002-step-5", "000007"):
            (tmp_path / name).mkdir()
        assert Series(tmp_path).next_number() == 3
        (tmp_path / "000007" / "manifest.json").write_text("damaged")
        assert Series(tmp_path).next_number() == 8
        assert Series(tmp_path / "nothing").next_number() == 1

    def test_surplus_is_older_than_the_newest_and_the_oldest_is_first(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for step, metric in enumerate((0.1, 0.9, 0.2, 0.3, 0.4)):
            save(series, str(step), metric=metric, best="max")
        names = [path.name for path in series.surplus(2)]
        assert names == ["000001", "000003"]
        assert series.surplus(5) == []
        (series.folder / "000005" / "values.pt").write_bytes(b"")  # does not count
        assert [path.name for path in series.surplus(2)] == ["000001"]

    def test_a_best_one_that_is_damaged_is_told(self, tmp_path: Path) -> None:
        series = Series(tmp_path / "a")
        for metric in (0.5, 0.9):
            path = save(series, str(metric), metric=metric, best="max")
        (path / "values.pt").write_bytes(b"8.0")
        damaged: list[CheckpointError] = []
        found = series.best(damaged=damaged)
        assert found is not None
        assert found.manifest.metric == 0.5
        assert [str(each) for each in damaged] == [
            f"{path}/values.pt was altered: its content does not match the saved hash. Load "
            "another checkpoint of the series"
        ]
        unhashed = series.best(hashes=False)
        assert unhashed is not None
        assert unhashed.path == path
        assert [finding.path.name for finding in verify_folder(path)] == ["values.pt"]
        assert verify_folder(path, hashes=False) == ()
