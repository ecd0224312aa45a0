"""`anyrig rehearse compare`: one table of several rigs, with what fails in its row."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from anyrig.cli.group_end import error_of_group
from anyrig.errors import DeviceTextError, ReportError, UnknownHardwareError
from anyrig.processes.failure import GroupFailure
from anyrig.processes.launcher import GroupResult
from anyrig.processes.rank_end import Ending, RankEnd
from anyrig.rehearsal.comparison.compared_rig import ComparedRig, Outcome, compare_rig
from anyrig.rehearsal.comparison.comparison import Comparison
from anyrig.rehearsal.comparison.missing_memory import missing_bytes, with_more_memory
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.rigs import parse_rigs
from anyrig.rehearsal.comparison.table import comparison_table, describe_fit, describe_interval
from anyrig.rehearsal.comparison.told_apart import find_alike
from anyrig.virtual.rig import LARGEST_GPU_BYTES, VirtualRig
from forked_programs import run_anyrig

PROGRAM = str(Path(__file__).parent / "programs" / "fails_on_a_t4.py")
PRICES = 'currency = "EUR"\n[per_hour]\nl4 = 0.72\n1GiB = 3\n'


def test_a_rig_that_fits_one_that_is_too_small_and_one_on_which_the_script_fails(
    tmp_path: Path,
) -> None:
    prices, file = tmp_path / "prices.toml", tmp_path / "rigs.json"
    prices.write_text(PRICES)
    flags = ["--prices", str(prices), "--json", str(file), "--shape-only", "--steps", "2"]
    words = ["rehearse", "compare", "--rig", "L4,1GiB,2xT4", *flags, PROGRAM, "--lr", "1"]
    done = run_anyrig(*words, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "no T4, please" in done.stderr  # the output of the script
    assert "rehearsal 2 of 3: 1GiB" in done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split("  ")[0] == "rig"
    assert "EUR per million samples" in head
    by_rig = {line.split()[0]: line for line in lines}
    written = json.loads(file.read_text())
    assert written["format"] == "anyrig-comparison"
    assert written["command"] == [PROGRAM, "--lr", "1"]
    fits, small, broken = written["rigs"]

    assert "yes, " in by_rig["L4"]
    assert fits["outcome"] == "fits"
    assert fits["samples_per_second"] == pytest.approx(2 / fits["step_seconds"])
    expected = 0.72 / 3600 * 1e6 / fits["samples_per_second"]
    assert fits["cost_per_million_samples"] == pytest.approx(expected)
    assert fits["facts"]["typical_step"]["seconds"] == fits["step_seconds"]
    assert fits["facts"].keys().isdisjoint({"tracks", "texts", "intervals", "memory"})
    assert fits["headroom_bytes"] == fits["facts"]["devices"][0]["peak"]["headroom_bytes"]

    # Parameters, gradients, two moments and a temporary tensor of 256 MiB each; no context. Before
    # 2.15, PyTorch keeps cuBLAS's workspaces too.
    assert "MiB too little" in by_rig["1GiB"]
    assert small["outcome"] == "out of memory"
    assert 256 * 2**20 <= small["missing_bytes"] < 300 * 2**20
    assert fits["step_interval"] == fits["facts"]["step_interval"]
    assert written["not_told_apart"] == []  # of one rig

    assert "failed: ValueError at fails_on_a_t4.py:10: no T4, please" in by_rig["2xT4"]
    assert "no price" in by_rig["2xT4"]
    assert (broken["status"], broken["outcome"]) == (1, "failed")
    assert broken["cost_per_million_samples"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("currency = ", "cannot be read as TOML"),
        ("", "currency is None"),
        ('currency = "EUR"', r"no table \[per_hour\]"),
        ('currency = "EUR"\nper_hour = 3', r"no table \[per_hour\]"),
        ('currency = "a\\nb"\n[per_hour]\nT4 = 1', r"currency is 'a\\nb'"),
        ('currency = "EUR"\nyear = 3\n[per_hour]\nT4 = 1', "unknown key 'year'"),
        ('currency = "EUR"\n[per_hour]\nT5 = 1', "names 'T5': no GPU is called 'T5'"),
        ('currency = "EUR"\n[per_hour]\n2xT4 = 1', "several GPUs"),
        ('currency = "EUR"\n[per_hour]\nT4 = -1', "T4 is -1 an hour"),
        ('currency = "EUR"\n[per_hour]\nT4 = nan', "T4 is nan an hour"),
        ('currency = "EUR"\n[per_hour]\nT4 = inf', "T4 is inf an hour"),
        ('currency = "EUR"\n[per_hour]\nT4 = true', "T4 is True, and must be a number"),
        ('currency = "EUR"\n[per_hour]\nT4 = "1"', "T4 is '1', and must be a number"),
        ('currency = "EUR"\n[per_hour]\nT4 = 1\nt4 = 2', "names T4 twice"),
    ],
)
def test_malformed_prices(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(content)
    with pytest.raises(ReportError, match=message):
        Prices.read(tmp_path / "prices.toml")


def test_the_price_of_a_rig_is_that_of_all_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    prices = Prices.read(tmp_path / "prices.toml")
    assert prices.of_rig(VirtualRig.parse("2x(2xL4)")) == pytest.approx(4 * 0.72)
    assert prices.of_rig(VirtualRig.parse("L4+T4")) is None


def test_rigs_are_named_once() -> None:
    assert [str(rig) for rig in parse_rigs("2xl4, T4")] == ["2xL4", "T4"]
    with pytest.raises(DeviceTextError, match="the rig 2xL4 is named twice"):
        parse_rigs("2xL4,T4,L4x2")
    with pytest.raises(DeviceTextError, match="33 rigs are named; name at most 32"):
        parse_rigs(",".join(["T4"] * 33))
    with pytest.raises(UnknownHardwareError, match="A1000"):
        parse_rigs("T4,A1000")


def test_missing_memory_is_that_of_the_fullest_gpu_without_what_is_cached() -> None:
    assert str(with_more_memory(VirtualRig.parse("2x(16GiB)"))) == "2x(256GiB)"
    before = {
        "devices": [
            {"rank": rank, "index": 0, "capacity_bytes": 104, "peak": {"context_bytes": 4}}
            for rank in range(2)
        ]
    }

    def memory(rank: int, *tensors: int) -> dict[str, object]:
        zeros = [0] * len(tensors)
        return {
            "rank": rank,
            "device": 0,
            "tensor_bytes": tensors,
            "workspace_bytes": zeros,
            "context_bytes": [10] * len(tensors),
            "cached_bytes": [1000] * len(tensors),
        }

    after = {"memory": [memory(0, 50, 95), memory(1, 120, 60), memory(2, 500)]}
    assert missing_bytes(before, after) == 30
    assert missing_bytes(before, {"memory": [memory(0, 50)]}) is None


def test_a_rehearsal_that_wrote_no_facts_fails_with_its_last_line() -> None:
    row = compare_rig(VirtualRig.parse("T4"), 1, None, "anyrig: error: no compiler", None)
    assert row.outcome is Outcome.FAILED
    assert describe_fit(row) == "failed: anyrig: error: no compiler"
    assert describe_fit(compare_rig(VirtualRig.parse("T4"), 3, {}, None, None)) == (
        "failed: exit status 3"
    )
    error = {"kind": "SystemExit", "text": "sys.exit(2)", "line": "train.py:9"}
    said = "train.py: error: no such flag"
    assert describe_fit(compare_rig(VirtualRig.parse("T4"), 2, {"error": error}, said, None)) == (
        f"failed: sys.exit(2) at train.py:9; its last line: {said}"
    )
    unused = compare_rig(VirtualRig.parse("T4"), 0, {"devices": []}, None, None)
    assert describe_fit(unused) == "no GPU used"


def test_a_rig_has_left_what_its_fullest_gpu_has_left() -> None:
    devices = [{"peak": {"headroom_bytes": left * 2**30}} for left in (3, 1, 2)]
    row = compare_rig(VirtualRig.parse("3xT4"), 0, {"devices": devices}, None, None)
    assert describe_fit(row) == "yes, 1.00 GiB left"


def timed(rig: str, seconds: float, **interval: Any) -> ComparedRig:
    known = {"low_seconds": 0.9 * seconds, "high_seconds": 1.2 * seconds, "programs": 44}
    of_step = {**known, "reason": "steps", "apart": None, **interval}
    return row(rig, facts(seconds, 1 / seconds, step_interval=of_step))


def test_the_interval_of_a_step_is_that_of_its_rehearsal() -> None:
    assert describe_interval(timed("L4", 2.0).step_interval) == "1.8 to 2.4 s"
    unknown = timed("L4", 2.0, low_seconds=None, high_seconds=None, reason="untried")
    assert describe_interval(unknown.step_interval) == "not known"
    assert describe_interval(row("L4").step_interval) == "-"


def test_rigs_whose_errors_may_differ_by_more_than_their_times_are_not_told_apart() -> None:
    near, far = timed("L4", 1.0, apart=1.1), timed("T4", 1.09, apart=1.05)
    (alike,) = find_alike([near, far])
    assert alike.rigs == ("L4", "T4")
    assert (alike.factor, alike.error) == pytest.approx((1.09, 1.1))
    assert "L4 and T4 cannot be told apart: one is faster by a factor of 1.09" in str(alike)
    assert not find_alike([near, timed("T4", 1.11, apart=1.05)])
    # Where errors on two GPUs were not compared, they count as independent: 1.2 and 1.2 give 1.29.
    assert find_alike([near, timed("T4", 1.29)])
    assert not find_alike([near, timed("T4", 1.30)])
    unknown = timed("T4", 1.0, low_seconds=None, high_seconds=None)
    assert not find_alike([near, unknown, row("2xL4", status=1)])


def test_the_error_of_ranks_is_that_of_the_rank_that_caused_it() -> None:
    end = RankEnd(
        1, "node0", 1, Ending.FAILED, None, "torch.OutOfMemoryError: CUDA out of memory. Tried",
        "Traceback …", "/a/train.py:31 in step", None, None, False, None,
    )  # fmt: skip
    error = error_of_group(GroupResult(GroupFailure((), (end,))))
    assert error is not None
    assert (error.kind, error.text) == ("OutOfMemoryError", "CUDA out of memory. Tried")
    assert error.line == "train.py:31"
    assert error_of_group(GroupResult()) is None


def facts(seconds: float, rate: float | None, **more: Any) -> dict[str, Any]:
    return {"typical_step": {"seconds": seconds, "samples_per_second": rate}, "devices": [], **more}


def row(rig: str = "2xL4", of: dict[str, Any] | None = None, status: int = 0) -> ComparedRig:
    prices = Prices("USD", {"L4": 1.8})
    return compare_rig(VirtualRig.parse(rig), status, of, None, prices)


def test_the_cost_is_that_of_a_million_samples_and_of_a_million_steps() -> None:
    found = row(of=facts(0.5, 100.0))
    assert found.price_per_hour == pytest.approx(3.6)
    assert found.cost_per_million_samples == pytest.approx(10.0)
    assert found.cost_per_million_steps == pytest.approx(500.0)
    many = row(of=facts(0.5, 100.0, assumed_ranks={"nodes": 8, "ranks": 16}))
    assert (many.ranks, many.price_per_hour) == (16, pytest.approx(28.8))
    assert row("T4", facts(0.5, 100.0)).cost_per_million_samples is None
    failed = row(of=facts(0.5, 100.0, error=None), status=1)
    assert (failed.step_seconds, failed.cost_per_million_steps) == (None, None)


def shown(*rows: ComparedRig, currency: str | None = "USD") -> list[list[str]]:
    console = Console(file=io.StringIO(), width=400, color_system=None)
    with console.capture() as capture:
        console.print(comparison_table(rows, currency))
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in capture.get().splitlines()
    ]


def test_the_table_has_the_columns_that_the_rigs_have() -> None:
    first, second = row(of=facts(0.5, 1234.5)), row("T4", facts(0.25, None))
    table = shown(first, second)
    assert table[0] == [
        *("rig", "fits", "step", "9 of 10 between", "samples/s", "USD per million samples")
    ]
    assert table[1] == ["2xL4", "no GPU used", "500.00 ms", "-", "1,234", "0.81"]
    assert table[2] == ["T4", "no GPU used", "250.00 ms", "-", "-", "no price"]
    assert shown(timed("L4", 2.0))[1][3] == "1.8 to 2.4 s"
    assert shown(row(of=facts(4.88, 1.64)))[1][4] == "1.64"
    unknown = row(of=facts(0.5, None))
    assert shown(first, unknown)[2][5] == "-"  # it has a price, and no samples
    steps = shown(unknown, second)
    assert "USD per million steps" in steps[0]
    assert steps[1][5] == "500"
    assert shown(first, currency=None)[0] == [
        *("rig", "fits", "step", "9 of 10 between", "samples/s")
    ]
    many = row(of=facts(0.5, 100.0, assumed_ranks={"nodes": 800, "ranks": 1600}))
    assert [line[1] for line in shown(many, second)] == ["ranks", "1,600", "-"]


def test_a_failure_has_the_first_line_of_its_error() -> None:
    error = {"kind": "ValueError", "text": "first\nsecond", "line": None}
    failed = row(of={"error": error}, status=1)
    assert (failed.outcome, describe_fit(failed)) == (Outcome.FAILED, "failed: ValueError: first")
    long = row(of={"error": {**error, "text": "x" * 100}}, status=1)
    assert describe_fit(long) == f"failed: ValueError: {'x' * 88}…"
    full = row(of={"error": {**error, "kind": "OutOfMemoryError"}}, status=1)
    assert (full.outcome, describe_fit(full)) == (Outcome.OUT_OF_MEMORY, "no, out of memory")
    assert describe_fit(replace(full, missing_bytes=2**30)) == "no, about 1.00 GiB too little"


def test_a_comparison_as_json() -> None:
    of = facts(0.5, 100.0, steps=[{"number": 1, "path": [1]}], tracks=[1], texts=[1], memory=[1])
    found = row(of=of)
    comparison = Comparison((), ("train.py", "--lr", "1"), Prices("USD", {"L4": 1.8}), True)
    written = comparison.as_json([found])
    assert (written["format"], written["version"]) == ("anyrig-comparison", 1)
    assert written["prices"] == {"currency": "USD", "per_hour": {"L4": 1.8}}
    assert written["rigs"][0]["outcome"] == "fits"
    assert written["rigs"][0]["facts"]["steps"] == [{"number": 1}]
    assert written["rigs"][0]["facts"].keys() == {"typical_step", "devices", "steps"}
    assert replace(comparison, prices=None).as_json([])["prices"] is None


def test_more_memory_has_a_limit() -> None:
    large = with_more_memory(VirtualRig.parse("T4"))
    assert large.devices[0].memory_bytes == 16 * VirtualRig.parse("T4").devices[0].memory_bytes
    assert large.devices[0].spec is None
    most = VirtualRig.parse("T4")
    most = replace(most, devices=(replace(most.devices[0], memory_bytes=LARGEST_GPU_BYTES),))
    assert with_more_memory(most).devices[0].memory_bytes == LARGEST_GPU_BYTES


FIRST_FORWARD = """
import torch
net = torch.nn.Linear(4096, 4096, bias=False).cuda()  # 64 MiB
optimizer = torch.optim.{optimizer}(net.parameters(), lr=0.1)
for _ in range({steps}):
    net(torch.zeros(2**16, 4096, device="cuda")).sum().backward()  # 2 GiB in all
    optimizer.step()
"""


def test_what_fails_in_the_first_step_lacks_the_optimizers_state_too(tmp_path: Path) -> None:
    def missing_bytes_of(optimizer: str, steps: int = 3) -> int:
        script = tmp_path / f"{optimizer}.py"
        script.write_text(FIRST_FORWARD.format(optimizer=optimizer, steps=steps))
        comparison = Comparison(("--shape-only",), (str(script),), None, False)
        found = comparison.rehearse_on(VirtualRig.parse("1GiB"))
        assert found.missing_bytes is not None
        return found.missing_bytes

    without = missing_bytes_of("SGD")
    assert missing_bytes_of("Adam") - without == 128 * 2**20
    assert missing_bytes_of("Adam", steps=1) < without + 128 * 2**20
