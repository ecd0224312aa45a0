"""Compute and shape-only mode count the same bytes."""

from __future__ import annotations

import json

import pytest
from on_a_rig import PROGRAMS, output_of

NETWORKS = ("convolutional", "recurrent", "transformer")


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, dict[str, int]]]:
    program = str(PROGRAMS / "bytes_of_training.py")
    return {mode: json.loads(output_of(program, mode)) for mode in ("compute", "shape-only")}


@pytest.mark.parametrize("network", NETWORKS)
def test_every_count_of_bytes_agrees(
    counted: dict[str, dict[str, dict[str, int]]], network: str
) -> None:
    assert counted["compute"][network] == counted["shape-only"][network]
    assert counted["compute"][network]["allocated_bytes.all.peak"] > 2**20


def test_a_captured_step_agrees_in_bytes_time_and_numbers_drawn() -> None:
    program = str(PROGRAMS / "captured_step.py")
    computed, shaped = (json.loads(output_of(program, mode)) for mode in ("compute", "shape-only"))
    assert computed == shaped
    assert computed["drawn"] == 4
    assert 0 < computed["milliseconds"] < 1
