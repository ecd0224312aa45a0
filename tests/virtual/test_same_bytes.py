"""Compute and shape-only mode count the same bytes."""

from __future__ import annotations

import json
from typing import Any

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


@pytest.fixture(scope="module")
def called() -> dict[str, dict[str, Any]]:
    program = str(PROGRAMS / "bytes_of_operators.py")
    return {mode: json.loads(output_of(program, mode)) for mode in ("compute", "shape-only")}


def test_single_calls_agree_in_layouts_and_bytes(called: dict[str, dict[str, Any]]) -> None:
    assert called["compute"] == called["shape-only"]


# Shape and strides of the result on CUDA.
ON_A_GPU = {
    "convolution, channels last": [[2, 16, 4, 4], [256, 1, 64, 16]],
    "convolution, weight channels last": [[2, 16, 4, 4], [256, 1, 64, 16]],
    "transposed convolution of volumes": [[2, 3, 5, 5, 5], [375, 1, 75, 15, 3]],
    "convolution in float64": [[2, 16, 4, 4], [256, 1, 64, 16]],
    "reflection": [[2, 8, 8, 8], [512, 64, 8, 1]],
    "replication": [[2, 8, 8, 8], [512, 64, 8, 1]],
}


@pytest.mark.parametrize("name", ON_A_GPU)
def test_layouts_are_a_gpus(called: dict[str, dict[str, Any]], name: str) -> None:
    assert called["compute"][name]["results"] == [ON_A_GPU[name]]


def test_results_that_a_gpu_leaves_empty_take_no_memory(
    called: dict[str, dict[str, Any]],
) -> None:
    # The result alone; the result, each index's bag and each bag's size.
    assert called["compute"]["batch norm in evaluation"]["forward"][1] == 1
    assert called["compute"]["bags"]["forward"][1] == 3 + 1  # plus the offsets


def test_a_captured_step_agrees_in_bytes_time_and_numbers_drawn() -> None:
    program = str(PROGRAMS / "captured_step.py")
    computed, shaped = (json.loads(output_of(program, mode)) for mode in ("compute", "shape-only"))
    assert computed == shaped
    assert computed["drawn"] == 4
    assert 0 < computed["milliseconds"] < 1
