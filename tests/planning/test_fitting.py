"""The rows of an answer, from results that a formula gives in place of rehearsals."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from made_candidates import candidate
from made_results import BATCH, FORMULA, GIB, Formula, question
from rich.console import Console

from anyrig.errors import PlanningError
from anyrig.planning.candidate import Verdict
from anyrig.planning.fitted_rig import FittedRig, exit_status, order_rows
from anyrig.planning.fitting import Fitting
from anyrig.planning.kept_results import KeptResults
from anyrig.planning.rehearsed_value import Order
from anyrig.planning.rigs import read_rigs
from anyrig.planning.table import (
    describe_limits,
    describe_progress,
    describe_remedies,
    describe_row,
    fit_table,
)
from anyrig.planning.variation import Variation
from anyrig.programs.program import Program
from anyrig.rehearsal.comparison.prices import Prices
from anyrig.rehearsal.comparison.rehearsed_apart import RehearsedApart
from anyrig.rehearsal.remedies.savings import Saving, Savings
from anyrig.virtual.rig import VirtualRig


@dataclass(frozen=True)
class Always(KeptResults):
    """One result for every order."""

    result: RehearsedApart | None = None

    def find(self, order: Order) -> RehearsedApart | None:
        return self.result


def rows_of(results: KeptResults, **asked: Any) -> list[FittedRig]:
    note = lambda rig, value: pytest.fail("nothing is rehearsed")  # noqa: E731
    found = Fitting(question(**asked), results, note)
    assert not any(row.is_complete for row in found.rows())
    found.run()
    return found.rows()


def test_each_rig_has_its_largest_value_or_what_it_lacks() -> None:
    small, middle, large = rows_of(replace(FORMULA, base=14.2))
    # A T4 has 14.56 GiB, and 14.7 are needed with one sample.
    assert small.certain is None
    assert small.missing_bytes == pytest.approx(0.14 * GIB, rel=1e-3)
    assert describe_row(small, BATCH) == "no, about 143.36 MiB too little with --batch-size=1"
    assert small.is_too_small
    assert small.rehearsals == small.kept_results == 2
    # 5 % and 0.5 GiB are the margin.
    assert middle.certain is not None
    assert middle.certain.value == int(((23.5 - 0.5) / 1.05 - 14.2) / 0.5) == 15
    assert middle.certain.found.samples_per_second == pytest.approx(4)
    assert describe_row(middle, BATCH) == "certain, 1.80 GiB left"
    assert large.certain is not None
    assert large.certain.value == 120
    assert large.rehearsals <= 4
    assert middle.rehearsals <= 2
    assert all(row.is_complete for row in (small, middle, large))
    assert question().with_remedies(middle) is middle  # it needs none


def test_without_a_variation_each_rig_takes_one_rehearsal() -> None:
    rows = rows_of(FORMULA, variation=None)
    assert [row.rehearsals for row in rows] == [1, 1, 1]
    assert [row.certain.value for row in rows if row.certain] == [None] * 3
    near, *_ = rows_of(replace(FORMULA, base=13.9), variation=None)
    assert describe_row(near, None) == (
        "likely, 163.84 MiB left, 1.06 GiB too little to be certain"
    )
    assert near.certain is None
    assert not near.is_too_small


def test_the_rig_with_the_most_memory_is_asked_first_and_all_are_in_order() -> None:
    assert [str(row.rig) for row in rows_of(FORMULA)] == ["T4", "RTX-3090", "A100-80GB"]


def test_rows_are_sorted_by_price_then_speed() -> None:
    prices = Prices("USD", {"T4": 0.1, "RTX-3090": 0.2, "A100-80GB": 0.01})
    rigs = "T4,RTX-3090,A100-80GB,2GiB"
    rows = order_rows(rows_of(FORMULA, prices=prices, rigs=rigs))
    assert [str(row.rig) for row in rows] == ["A100-80GB", "T4", "RTX-3090", "2GiB"]
    rows = order_rows(rows_of(FORMULA, rigs=rigs))
    assert str(rows[-1].rig) == "2GiB"
    slow, fast = (
        rows_of(replace(FORMULA, seconds=1.0), rigs="T4"),
        rows_of(FORMULA, rigs="RTX-3090"),
    )
    assert [str(row.rig) for row in order_rows([*slow, *fast])] == ["RTX-3090", "T4"]


def test_only_what_is_certain_is_a_success() -> None:
    spares = {Verdict.CERTAIN: 1, Verdict.LIKELY: -1, Verdict.NO: None}
    status = {
        verdict: exit_status(
            [FittedRig(VirtualRig.parse("T4"), (candidate(8, verdict, spare),), True, None, 1, 0)]
        )
        for verdict, spare in spares.items()
    }
    assert status == {Verdict.CERTAIN: 0, Verdict.LIKELY: 1, Verdict.NO: 1}


def test_a_row_names_gpus_without_use_and_the_end_of_the_range() -> None:
    (row,) = rows_of(FORMULA, rigs="2xT4", variation=Variation("--batch-size", 1, 4))
    assert describe_limits(row, Variation("--batch-size", 1, 4)) == [
        "2xT4: the program uses 1 of 2 GPUs, and the price is that of all",
        "2xT4: 4 is the end of the range, and a larger value may fit, too",
    ]
    (alone,) = rows_of(FORMULA, rigs="T4")
    assert describe_limits(alone, BATCH) == []


def test_progress_counts_rigs_that_are_done_and_not_those_that_were_tried() -> None:
    found = (candidate(8, Verdict.CERTAIN, 1),)
    done, begun = (
        FittedRig(VirtualRig.parse("T4"), found, is_complete, None, 1, 0)
        for is_complete in (True, False)
    )
    assert describe_progress([begun, done]) == "; 1 of 2 rigs are done"
    assert describe_progress([begun]) == ""


def test_all_names_each_cuda_gpu_once() -> None:
    keys = [str(rig) for rig in read_rigs("all")]
    assert {"T4", "RTX-4090", "H100-SXM"} <= {*keys}
    assert "MI300X" not in keys
    assert len(keys) == len({*keys})


@pytest.mark.parametrize(
    ("status", "last_line", "facts", "message"),
    [
        (
            2,
            "train.py: error: unrecognized arguments: --batch-size=1",
            {"devices": []},
            "^train.py does not take --batch-size: train.py: error: unrecognized arguments: "
            "--batch-size=1; name a flag of the script",
        ),
        (
            1,
            None,
            {"devices": [], "error": {"kind": "KeyError", "text": "'x'", "line": "train.py:3"}},
            "^train.py failed with --batch-size=1 on A100-80GB before it used a GPU: KeyError at "
            "train.py:3: 'x'; anyrig rehearse --assume-values --rig A100-80GB train.py --lr 1 "
            "--batch-size=1 shows all",
        ),
        (0, None, {"devices": []}, "^train.py ended with --batch-size=1 on A100-80GB and used no"),
    ],
)
def test_a_program_that_uses_no_gpu_is_refused(
    status: int, last_line: str | None, facts: dict[str, Any], message: str
) -> None:
    ended = RehearsedApart(status, {"error": None, **facts}, last_line)
    with pytest.raises(PlanningError, match=message):
        rows_of(Always(Path(), "hash", result=ended))


def test_a_failure_on_the_gpu_is_that_of_its_rig() -> None:
    of_one = FORMULA.find(question().order(VirtualRig.parse("T4"), 1))
    assert of_one is not None
    assert of_one.facts is not None
    error = {"kind": "ValueError", "text": "no T4, please", "line": "train.py:3"}
    failed = RehearsedApart(1, {**of_one.facts, "error": error}, None)
    (row,) = rows_of(Always(Path(), "hash", result=failed), rigs="T4")
    assert describe_row(row, BATCH) == (
        "failed: ValueError at train.py:3: no T4, please with --batch-size=1"
    )
    refused = RehearsedApart(1, None, "anyrig: error: this PyTorch has no kernels for a T4")
    (row,) = rows_of(Always(Path(), "hash", result=refused), rigs="T4")
    assert describe_row(row, BATCH).startswith("failed: anyrig: error: this PyTorch has no")


@dataclass(frozen=True)
class FailsOnT4(Formula):
    """The formula, and a program that refuses a T4 before it uses one."""

    def find(self, order: Order) -> RehearsedApart | None:
        if order.rig != "T4":
            return super().find(order)
        error = {"kind": "SpreadError", "text": "no bfloat16", "line": "train.py:3"}
        return RehearsedApart(1, {"devices": [], "error": error}, None)


def test_a_failure_before_the_gpu_on_one_of_several_rigs_is_that_of_its_rig() -> None:
    small, middle, large = rows_of(FailsOnT4(Path(), "hash"))
    assert describe_row(small, BATCH).startswith("failed: SpreadError at train.py:3: no bfloat16")
    assert middle.certain is not None
    assert large.certain is not None
    with pytest.raises(PlanningError, match="failed with --batch-size=1 on T4 before it used"):
        rows_of(FailsOnT4(Path(), "hash"), rigs="T4")


def test_a_value_that_changes_nothing_is_refused() -> None:
    same = replace(FORMULA, each=0.0, seconds=0.0)
    message = "the same memory and time with --batch-size=1 and --batch-size=512"
    with pytest.raises(PlanningError, match=message):
        rows_of(same)
    large = rows_of(replace(FORMULA, each=0.0))[-1]  # time depends on it
    assert large.certain is not None
    assert large.certain.value == 512
    rows_of(same, variation=Variation("--batch-size", 8, 8))  # one value is no range


def test_an_order_has_the_value_as_a_word_or_a_variable() -> None:
    order = question().order(VirtualRig.parse("T4"), 8)
    assert order.make_program() == Program("train.py", ("--lr", "1", "--batch-size=8"))
    assert order.environment == {}
    named = question(variation=Variation("BATCH", 1, 8))
    order = named.order(VirtualRig.parse("T4"), 8)
    assert order.make_program().arguments == ("--lr", "1")
    assert order.environment["BATCH"] == "8"


def shown(rows: list[FittedRig], prices: Prices | None = None) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=400, color_system=None)
    with console.capture() as capture:
        console.print(fit_table(rows, BATCH, None if prices is None else prices.currency))
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in capture.get().splitlines()
    ]


def test_the_table_and_its_json() -> None:
    prices = Prices("USD", {"RTX-3090": 0.36})
    rows = rows_of(replace(FORMULA, base=14.2), prices=prices)
    head, small, middle, large = shown(rows, prices)
    assert head[:3] == ["rig", "--batch-size", "fits"]
    assert head[3:7] == ["step", "9 of 10 between", "samples/s", "USD per million samples"]
    assert small[1:3] == ["-", "no, about 143.36 MiB too little with --batch-size=1"]
    assert middle[1:7] == ["15", "certain, 1.80 GiB left", "3.75 s", "-", "4", "25"]
    assert large[6] == "no price"
    assert middle[-1] == str(rows[1].rehearsals)
    written = json.loads(json.dumps([row.as_json() for row in rows]))
    assert written[0]["verdict"] == "no"
    assert written[1]["certain_value"] == 15
    assert written[1]["tried"][0]["cost_per_million_samples"] == pytest.approx(25)
    assert "facts" not in written[1]["tried"][0]


def test_a_larger_value_that_ran_is_named_as_likely() -> None:
    (row,) = rows_of(FORMULA, rigs="A100-80GB")
    assert row.certain is not None
    stopped = replace(row, is_complete=False)
    assert describe_row(stopped, BATCH).endswith(" left, stopped")
    assert describe_row(replace(row, tried=()), BATCH) == "not tried"
    likely = replace(row.tried[-1], value=900, verdict=row.tried[-1].verdict.LIKELY)
    assert describe_row(replace(row, tried=(*row.tried, likely)), BATCH).endswith("likely 900")
    smaller = replace(likely, value=2)
    assert "likely" not in describe_row(replace(row, tried=(*row.tried, smaller)), BATCH)


def test_remedies_are_those_that_are_enough_the_fastest_first() -> None:
    small, *_ = rows_of(replace(FORMULA, base=14.2))

    def saving(name: str, time: float | None, *, enough: bool) -> Saving:
        return Saving((name,), (f"do {name}",), GIB, GIB, time, False, enough)

    savings = [saving("a", 1.5, enough=True), saving("b", 1.1, enough=True)]
    savings.append(saving("c", 1.0, enough=False))
    found = Savings(1, 0, GIB, GIB, GIB, tuple(savings), {})
    text = describe_remedies(replace(small, remedies=found), BATCH)
    assert text is not None
    first, *lines = text.splitlines()
    assert first == "T4 with --batch-size=1 runs with one of:"
    assert [line.rpartition(" ")[2] for line in lines] == ["b", "a"]
    none = replace(found, of_remedies=tuple(savings[2:]))
    text = describe_remedies(replace(small, remedies=none), BATCH)
    assert text is not None
    most = "no remedy saves enough, nor do several together; the most is:\n  saves 1.00 GiB, not"
    assert f"{most} enough, time +0 %: c: do c" in text
    together = Saving(("c", "d"), ("do c", "do d"), 2 * GIB, GIB, None, False)
    text = describe_remedies(replace(small, remedies=replace(none, together=together)), BATCH)
    assert text is not None
    assert text.endswith("the most is:\n  saves 2.00 GiB, not enough:\n    c: do c\n    d: do d")
    fits = replace(none, together=replace(together, is_enough=True))
    text = describe_remedies(replace(small, remedies=fits), BATCH)
    assert text is not None
    assert [*map(str.strip, text.splitlines())] == [
        "T4 with --batch-size=1 runs with one of:",
        "saves 2.00 GiB, enough:",
        "c: do c",
        "d: do d",
    ]
    failed = describe_remedies(replace(small, remedies="it failed"), None)
    assert failed == "T4: it failed"
    assert describe_remedies(small, BATCH) is None


def test_results_are_kept_by_order_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    order = Order({"name": "train.py", "arguments": [], "is_module": False}, "T4", 3, None, {})
    result = FORMULA.find(order)
    assert result is not None
    assert result.facts is not None
    kept = KeptResults(tmp_path / "fit", "hash")
    assert kept.find(order) is None
    columns = {"seconds": [0, 1, 2], "cached_bytes": [5, 5, 5], "context_bytes": [1, 1, 1]}
    memory = {"tensor_bytes": [7, 6, 4], "workspace_bytes": [0, 3, 3], **columns, "rank": 0}
    facts = {**result.facts, "memory": [memory], "texts": ["x"]}
    kept.keep(order, RehearsedApart(0, facts, "done"))
    found = kept.find(order)
    assert found is not None
    assert found.facts is not None
    assert (found.status, found.last_line) == (0, "done")
    assert "texts" not in found.facts
    assert found.facts["memory"][0]["tensor_bytes"] == [6]  # when most was in use
    assert found.facts["devices"] == facts["devices"]
    assert replace(kept, is_read=False).find(order) is None
    assert replace(kept, fingerprint="other").find(order) is None
    assert kept.find(replace(order, environment={"BATCH": "1"})) is None
    (file,) = (tmp_path / "fit").iterdir()
    for content in ("", "[]", '{"status": "x"}', '{"status": 0, "facts": null, "last_line": ""}'):
        file.write_text(content)
        assert kept.find(order) is None
    kept.keep(order, RehearsedApart(0, facts, "done"))
    assert kept.find(order) is not None
    blocked = KeptResults(file / "fit", "hash")
    blocked.keep(order, RehearsedApart(0, facts, "done"))
    assert blocked.find(order) is None
