"""What a manifest says of a save, and what is no manifest."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anyrig
from anyrig.checkpoint import FileFact, Manifest, read_manifest
from anyrig.checkpoint.describe import CheckpointDescription, SeriesDescription, describe
from anyrig.checkpoint.manifest import MANIFEST_NAME, encode_manifest
from anyrig.errors import CheckpointDamagedError, CheckpointError


def test_the_manifest_says_what_was_saved_when_and_by_what(tmp_path: Path) -> None:
    before = time.time()
    for _ in range(2):
        path = anyrig.save(tmp_path, model=nn.Linear(1, 1), step=np.int64(4), metric=1, best="min")
    found = read_manifest(path)
    assert (found.number, found.ranks, found.format) == (2, 1, 1)
    assert (found.step, found.metric, found.best) == (4, 1.0, "min")
    assert before <= found.saved_at <= time.time()
    assert found.versions == {
        "anyrig": anyrig.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    sizes = {each.name: each.stat().st_size for each in path.iterdir()}
    del sizes[MANIFEST_NAME]
    assert {name: fact.bytes for name, fact in found.files.items()} == sizes
    assert found.bytes == sum(sizes.values())
    shown = describe(path)
    assert isinstance(shown, CheckpointDescription)
    assert (shown.number, shown.saved_at, dict(shown.files)) == (2, found.saved_at, sizes)
    series = describe(tmp_path)
    assert isinstance(series, SeriesDescription)
    assert [each.number for each in series.checkpoints] == [1, 2]
    assert (series.checkpoints[1].bytes, series.checkpoints[1].saved_at) == (
        found.bytes,
        found.saved_at,
    )


@pytest.mark.parametrize(
    ("make", "layout"),
    [
        (lambda: None, "no model, one process"),
        (lambda: nn.Linear(1, 1), "Linear, one process"),
        (lambda: anyrig.spread(nn.Linear(1, 1), "cpu"), "one device"),
    ],
)
def test_the_layout_is_in_words(make: Any, layout: str, tmp_path: Path) -> None:
    assert read_manifest(anyrig.save(tmp_path, model=make())).layout == layout


@pytest.mark.gpus(2)
def test_the_layout_counts_devices(tmp_path: Path) -> None:
    model = anyrig.spread(nn.Linear(1, 1).to("cuda:0"), "cuda:0,1")
    assert read_manifest(anyrig.save(tmp_path, model=model)).layout == "replicas over 2 devices"


def test_a_metric_that_json_cannot_hold_is_described_as_none(tmp_path: Path) -> None:
    path = anyrig.save(tmp_path, metric=float("inf"), best="max")
    assert read_manifest(path).metric == float("inf")
    one, series = describe(path), describe(tmp_path)
    assert isinstance(one, CheckpointDescription)
    assert isinstance(series, SeriesDescription)
    assert one.metric is series.checkpoints[0].metric is None
    assert series.best == path.name


FACT = FileFact(1, "0" * 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"number": 0}, "number is 0 and ranks is 1; both begin at 1"),
        ({"ranks": 0}, "number is 1 and ranks is 0; both begin at 1"),
        ({"best": "high"}, "best must be 'max' or 'min', not 'high'"),
    ],
)
def test_a_false_manifest_is_not_made(change: dict[str, Any], message: str) -> None:
    whole = Manifest(1, None, None, None, "", 1, 0.0, {}, {"values.pt": FACT})
    with pytest.raises(ValueError, match=message):
        replace(whole, **change)


@pytest.mark.parametrize("fact", [(-1, "0" * 64), (1, "0" * 63), (1, "A" * 64), (1, "0" * 65)])
def test_a_false_file_is_not_made(fact: tuple[int, str]) -> None:
    with pytest.raises(ValueError, match=f"a file of {fact[0]} bytes with the hash"):
        FileFact(*fact)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "it is a JSON list, not an object"),
        (b'{"format": 1}', ""),
    ],
)
def test_what_is_no_manifest_is_damaged(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / MANIFEST_NAME
    path.write_bytes(content)
    with pytest.raises(CheckpointDamagedError, match=f"was altered or cut off: {problem}") as got:
        read_manifest(tmp_path)
    assert got.value.path == path


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointDamagedError, match=r"has no manifest.json, .* not a chec") as got:
        read_manifest(tmp_path)
    assert got.value.path == tmp_path / MANIFEST_NAME


def test_a_later_version_of_anyrig_is_named(tmp_path: Path) -> None:
    manifest = Manifest(1, None, None, None, "", 1, 0.0, {"anyrig": "9.8"}, {})
    content = json.loads(encode_manifest(manifest)) | {"format": 7, "added": "later"}
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"has format 7, written by anyrig 9\.8; this") as got:
        read_manifest(tmp_path)
    assert not isinstance(got.value, CheckpointDamagedError)
