"""`anyrig rehearse --ranks`: rank 0 alone takes as long, and as much memory, as among all ranks."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from anyrig.cli.group_flags import GroupFlags
from anyrig.cli.many_ranks import rank_0_variables, read_ranks
from anyrig.rehearsal.comparison.compared_rig import compare_rig
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.table import comparison_table
from anyrig.virtual.rig import VirtualRig

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM, SPREADS = str(PROGRAMS / "trains_alike.py"), str(PROGRAMS / "spreads_alike.py")


def rehearse(*words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anyrig", "rehearse", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def facts_of(file: Path, *words: str) -> tuple[dict[str, Any], str]:
    done = rehearse("--json", str(file), *words)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text()), done.stderr


def check_equal(folder: Path, nodes: int, gpus: int, *ways: str) -> None:
    """Compare rank 0 of a rank on each GPU, alone and among processes."""
    rig, ranks = f"{gpus}xA100-80GB", nodes * gpus
    alone, _ = facts_of(folder / "alone.json", "--ranks", str(ranks), "--rig", rig, PROGRAM, *ways)
    flags = ["--nnodes", str(nodes), "--nproc-per-device", "1", "--shape-only"]
    among, _ = facts_of(folder / "among.json", "--rig", f"{nodes}x({rig})", *flags, PROGRAM, *ways)
    assert len(alone["steps"]) == len(among["steps"]) == 4 * len(ways)
    for number, way in enumerate(ways):
        # The first of four steps differs: it includes what came before.
        times = [
            statistics.median(
                step["end_seconds"] - step["begin_seconds"]
                for step in facts["steps"][4 * number + 1 : 4 * number + 4]
            )
            for facts in (alone, among)
        ]
        assert times[0] == pytest.approx(times[1], rel=0.01), way
    peaks = [
        next(device["peak"] for device in facts["devices"] if device["rank"] == 0)
        for facts in (alone, among)
    ]
    assert peaks[0]["total_bytes"] == pytest.approx(peaks[1]["total_bytes"], rel=0.01)
    assert peaks[0]["collective_bytes"] == peaks[1]["collective_bytes"]
    # Which of two collectives at once is slowed down depends on which thread comes first.
    kinds = ("in_node_seconds", "across_nodes_seconds")
    seconds = [sum(facts["collectives"][kind] for kind in kinds) for facts in (alone, among)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.05)
    assert alone["assumed_ranks"]["ranks"] == ranks
    assert among["assumed_ranks"] is None


def test_one_rank_is_like_one_of_four_processes_on_two_nodes(tmp_path: Path) -> None:
    check_equal(tmp_path, 2, 2, "replicas", "shards", "tensors")


@pytest.mark.parametrize("plan", ["Shards()", pytest.param("Replicas()", marks=pytest.mark.sweep)])
def test_one_rank_of_a_spread_model_is_like_one_of_two(
    plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYRIG_PLAN", plan)
    words = ["--assume-values", "--rig", "2xA100-80GB", SPREADS]
    alone, _ = facts_of(tmp_path / "alone.json", "--ranks", "2", *words)
    among, _ = facts_of(tmp_path / "among.json", "--nproc-per-node", "2", *words)
    seconds = [facts["typical_step"]["seconds"] for facts in (alone, among)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)
    assert alone["assume_values"]
    assert among["assume_values"]
    assert alone["steps"][1]["samples"] == among["steps"][1]["samples"] == 64
    peaks = [facts["devices"][0]["peak"]["total_bytes"] for facts in (alone, among)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


@pytest.mark.sweep
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (1, 4), (1, 8), (2, 4), (4, 1)])
def test_one_rank_is_like_one_of_several_processes(nodes: int, gpus: int, tmp_path: Path) -> None:
    check_equal(tmp_path, nodes, gpus, "replicas", "shards")


def test_a_thousand_ranks_take_no_longer_than_one(tmp_path: Path) -> None:
    begin = time.monotonic()
    words = ["--ranks", "1024", "--rig", "8xH100-SXM", PROGRAM, "replicas", "shards"]
    facts, summary = facts_of(tmp_path / "facts.json", *words)
    assert time.monotonic() - begin < 120  # usually about 10
    assert facts["rig"] == "128x(8xH100-SXM)"
    assert (facts["shape_only"], facts["assume_values"]) == (True, False)
    (device,) = facts["devices"]
    assert (device["rank"], device["index"]) == (0, 0)
    assert facts["collectives"]["across_nodes_seconds"] > 0
    assert facts["collectives"]["in_node_seconds"] == 0
    for part in (
        "rank 0 of 1,024 ran, on 128 nodes of 8 GPUs. The others are assumed to be like it",
        "no wait for a slower rank is seen",
        "NVLink of 450 GB/s joins the GPUs of a node, by their data sheet",
        "a network of 50 GB/s for each GPU joins the nodes: assumed, as --rig names no @rate",
    ):
        assert part in summary
    assert re.search(r"collectives take [\d.]+ ms across nodes; for [\d.]+ \w+ no kernel", summary)


@pytest.mark.parametrize(
    ("ranks", "rig", "why"),
    [
        (
            12,
            "8xH100-SXM",
            "12 ranks do not fill nodes of 8 GPUs, which are 8xH100-SXM; write 8 or 16",
        ),
        (
            4,
            "8xH100-SXM",
            "4 ranks do not fill nodes of 8 GPUs, which are 8xH100-SXM; write 8 or 16",
        ),
        (1, "T4", "it must be from 2 to 1024 with the rig T4, not 1; one rank needs no --ranks"),
        (0, "8xT4", "it must be from 8 to 8192 with the rig 8xT4, not 0"),
        (9000, "8xT4", "it must be from 8 to 8192"),
        (4, "2xT4+2xL4", "--rig names one node of equal GPUs, such as 8xH100-SXM, and not 2xT4"),
        (16, "2x(8xT4)", "--rig names one node of equal GPUs"),
    ],
)
def test_ranks_that_cannot_be_alike(ranks: int, rig: str, why: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(why)):
        read_ranks(ranks, VirtualRig.parse(rig), GroupFlags())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--device", "all"], "a flag for ranks, such as --device"),
        (["--remedies"], "the flags for ranks"),
        (["compare", "--rig", "8xT4,3xL4"], "16 ranks do not fill nodes of 3 GPUs, which are"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_that_need_all_ranks(flags: list[str], why: str) -> None:
    rig = [] if "--rig" in flags else ["--rig", "8xT4"]
    done = rehearse(*flags, *rig, "--ranks", "16", PROGRAM)
    assert done.returncode == 2
    assert why in re.sub(r"[│\s]+", " ", done.stderr)


def test_the_rig_and_the_environment_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = read_ranks(24, VirtualRig.parse("8xT4@10GB/s"), GroupFlags())
    assert str(rig) == "3x(8xT4)@10GB/s"
    own = rank_0_variables(rig)
    sizes = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [own[name] for name in sizes] == ["24", "8", "3"]
    assert {own[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")} == {"0"}
    assert own["ANYRIG_DEVICE"] == rig.devices[0].uuid
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(typer.BadParameter, match="shows 2 of the 8 GPUs"):
        rank_0_variables(rig)


def test_all_nodes_have_a_price() -> None:
    typical = {"seconds": 2.0, "samples_per_second": 10.0}
    facts = {"typical_step": typical, "assumed_ranks": {"nodes": 4, "ranks": 8}}
    row = compare_rig(VirtualRig.parse("2xT4"), 0, facts, None, Prices("EUR", {"T4": 0.5}))
    assert row.price_per_hour == 4 * 2 * 0.5


def test_the_table_names_the_ranks() -> None:
    facts = {"assumed_ranks": {"nodes": 600, "ranks": 1200}}
    rows = [compare_rig(VirtualRig.parse("2xT4"), 0, one, None, None) for one in (facts, None)]
    ranks = comparison_table(rows, None).columns[1]
    assert (ranks.header, [*ranks.cells]) == ("ranks", ["1,200", "-"])
    assert "ranks" not in [one.header for one in comparison_table(rows[1:], None).columns]
