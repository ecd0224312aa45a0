"""How hazards are collected, written down and reported."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anyrig.errors import HazardError
from anyrig.hazards import Hazard, HazardKind, Hazards, HazardWarning, watch_hazards
from anyrig.hazards.byte_sums import can_sum, sum_bytes
from anyrig.hazards.hazard import Place
from anyrig.hazards.models_alive import list_names, names_of
from anyrig.hazards.program_watch import (
    HazardOptions,
    ProgramWatch,
    read_ranks,
    report,
    watched_ranks,
)
from anyrig.hazards.ranks import Draw, RankFacts, compare_ranks
from anyrig.programs.program import Program

PLACES = (Place("made", __file__, 1), Place("step", None))
PROGRAM = Program("train.py")
HAZARD = Hazard(HazardKind.REBUILT, "what happened", PLACES, "what to write")


def test_a_hazard_is_text_with_its_lines_and_remedy() -> None:
    lines = [
        "what happened",
        'made      test_hazard_reports.py:1   """How hazards are collected, written down and '
        'reported."""',
        "step      at an unknown line",
        "remedy    what to write",
    ]
    assert str(HAZARD) == "\n  ".join(lines)
    of_rank = Hazard(HAZARD.kind, HAZARD.what, (), HAZARD.remedy, 3)
    assert str(of_rank) == "rank 3: what happened\n  remedy    what to write"
    assert str(Place("made", "/nowhere/a.py", 7)) == "made      a.py:7"


def test_a_hazard_survives_json() -> None:
    values = HAZARD.as_json()
    assert values["kind"] == "rebuilt"
    assert values["places"][1] == {"role": "step", "file": None, "line": None}
    assert Hazard.from_json(json.loads(json.dumps(values))) == HAZARD
    assert HAZARD.place("step") == PLACES[1]
    assert HAZARD.place("written") is None


def test_a_hazard_at_the_same_lines_counts_once_and_all_keep_their_order() -> None:
    hazards = Hazards()
    assert str(hazards) == "no hazards found"
    other_lines = Hazard(HAZARD.kind, HAZARD.what, PLACES[:1], HAZARD.remedy)
    other_kind = Hazard(HazardKind.CUT, HAZARD.what, PLACES, HAZARD.remedy)
    same = Hazard(HAZARD.kind, "it happened again", PLACES, HAZARD.remedy)
    assert [hazards.add(each) for each in (HAZARD, other_lines, same, other_kind)] == [
        True,
        True,
        False,
        True,
    ]
    assert list(hazards) == [HAZARD, other_lines, other_kind]
    assert (len(hazards), hazards[0], hazards[-1]) == (3, HAZARD, other_kind)
    assert str(hazards).startswith(f"{HAZARD}\n{other_lines}\n")


@pytest.mark.parametrize(("count", "head"), [(0, "no hazards"), (1, "1 hazard"), (2, "2 hazards")])
def test_a_report_counts_the_hazards(
    count: int, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report([HAZARD] * count, 0, fails=False)
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == "\n".join([f"anyrig: {head} found", *[str(HAZARD)] * count]) + "\n"


@pytest.mark.parametrize(
    ("count", "status", "fails", "expected"),
    [(1, 0, True, 1), (1, 0, False, 0), (0, 0, True, 0), (1, 7, True, 7), (1, 7, False, 7)],
)
def test_the_exit_code_is_the_programs_unless_hazards_are_to_fail(
    count: int, status: int, fails: bool, expected: int
) -> None:
    assert report([HAZARD] * count, status, fails=fails) == expected


def test_the_folder_of_the_ranks_is_read_in_their_order_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_ranks(HazardOptions(fails=True)) as (order, finish):
        assert order is not None
        folder = Path(order.options[2])
        for rank in (10, 2):
            monkeypatch.setenv("RANK", str(rank))
            watch = ProgramWatch(HazardOptions(folder=str(folder)))
            watch.begin()
            x = torch.ones(3, requires_grad=True)
            optimizer = torch.optim.SGD([x], 0.1)
            for _ in range(3):
                (x * 2).sum().backward()
                optimizer.step()
            assert watch.finish(PROGRAM, 5) == 5
        assert [hazard.rank for hazard in read_ranks(folder)] == [2, 10]
        assert capsys.readouterr().err == ""
        assert finish(0) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("anyrig: 2 hazards found")
    assert "\nrank 2: the gradients of SGD" in errors
    assert not folder.exists()
    with watched_ranks(None) as (order, finish):
        assert (order, finish(3)) == (None, 3)
    assert ProgramWatch(HazardOptions()).finish(PROGRAM, 4) == 4  # it did not import torch


def facts(*orders: tuple[int, int, int, bool, bool], shapes: str = "") -> RankFacts:
    return RankFacts(tuple(Draw(Place("loaded", "a.py", 9), each) for each in orders), (), shapes)


ORDER = (100, 0, 0, True, False)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ((99, 0, 0, True, False), "samples is 100 on rank 0 and 99 on rank 1"),
        ((100, 1, 0, True, False), "seed is 0 on rank 0 and 1 on rank 1"),
        ((100, 0, 2, True, False), "epoch is 0 on rank 0 and 2 on rank 1"),
        ((100, 0, 0, False, False), "shuffle is True on rank 0 and False on rank 1"),
        ((100, 0, 0, True, True), "drop_last is False on rank 0 and True on rank 1"),
    ],
)
def test_the_first_iteration_that_differs_is_named(
    order: tuple[int, int, int, bool, bool], text: str
) -> None:
    (hazard,) = compare_ranks([facts(ORDER, ORDER, ORDER), facts(ORDER, order, order)])
    assert hazard.what.startswith("in iteration 2, the samplers of ranks 0 and 1 use different")
    assert hazard.what.endswith(f": {text}")


def test_ranks_are_compared_with_the_first_rank_of_the_same_parameters() -> None:
    other = (100, 1, 0, True, False)
    assert compare_ranks([facts(ORDER, shapes="a"), facts(other, shapes="b")]) == []
    ranks = [facts(ORDER, shapes="a"), facts(other, shapes="b"), facts(ORDER, shapes="b")]
    (hazard,) = compare_ranks(ranks)
    assert [place.role for place in hazard.places] == ["rank 1", "rank 2"]
    assert compare_ranks([facts(ORDER), facts()]) == []


def test_the_number_of_backward_passes_is_named() -> None:
    passes = [Place("backward", "a.py", line) for line in (5, 8)]
    ranks = [RankFacts(steps=((), tuple(passes))), RankFacts(steps=((), tuple(passes[:1])))]
    (hazard,) = compare_ranks(ranks)
    assert hazard.kind is HazardKind.CONTROL_FLOW
    assert hazard.what.startswith(
        "before step 2, rank 0 ran 2 backward passes and rank 1 ran 1; the first difference"
    )
    assert [(place.role, place.number) for place in hazard.places] == [("rank 0", 8)]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], "a"),
        (["a", "b", "c", "d"], "a, b, c, d"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d and 2 more"),
    ],
)
def test_many_names_are_shown_in_part(names: list[str], text: str) -> None:
    assert list_names(iter(names)) == text


def test_names_are_sorted_and_those_of_whole_models() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert names_of([model[1].weight, model[0].bias]) == ["0.bias", "1.weight"]


def overwrite() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.data.mul_(2)
    y.sum().backward()


def test_each_hazard_warns_once_where_it_is_noticed_unless_it_is_an_error() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with watch_hazards(sums=True) as hazards:
            for _ in range(2):
                overwrite()
        assert [warning.category for warning in caught] == [HazardWarning]
        (place,) = (each for each in hazards[0].places if each.role == "written")
        assert (caught[0].filename, caught[0].lineno) == (__file__, place.number)
        with watch_hazards(sums=True, warn=False):
            overwrite()
        with pytest.raises(HazardError), watch_hazards(sums=True, raise_errors=True):
            overwrite()
        with watch_hazards() as hazards:
            overwrite()  # on the CPU, saved values are watched only if asked
        assert not hazards
        assert len(caught) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.copy_(x.flip(0)),  # the sum of all elements stays
        lambda x: x.copy_(x[[2, 1, 0, 3, 4, 5, 6, 7]]),  # that of every second one stays, too
        lambda x: x.neg_(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
def test_sums_of_bytes_change_with_the_values(change: object, dtype: torch.dtype) -> None:
    x = torch.arange(1, 9).to(dtype)
    before = sum_bytes(x)
    assert sum_bytes(x.clone()) == before
    change(x)  # type: ignore[operator]
    assert sum_bytes(x) != before


def test_what_can_be_summed() -> None:
    assert can_sum(torch.ones(1))
    assert can_sum(nn.Parameter(torch.ones(1)))
    assert not can_sum(torch.ones(0))
    assert not can_sum(torch.ones(1, device="meta"))
    assert not can_sum(torch.eye(2).to_sparse())
    assert not can_sum(torch.ones(1).as_subclass(type("Sub", (Tensor,), {})))
    assert sum_bytes(torch.tensor([1 + 2j])) == sum_bytes(torch.tensor([[1.0, 2.0]]))
