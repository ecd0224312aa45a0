"""Where ranks differ that should do the same."""

from __future__ import annotations

import json
from pathlib import Path

from hazards_of_ranks import CLEARINGS, WAYS

from anyrig.hazards import HazardKind
from anyrig.hazards.hazard import Place
from anyrig.hazards.ranks import Draw, RankFacts, compare_ranks
from forked_ranks import run_forked

RANKS = 2


def draws(*orders: tuple[int, int, int, bool, bool]) -> RankFacts:
    return RankFacts(tuple(Draw(Place("loaded", "train.py", 9), order) for order in orders))


def steps(*lines: tuple[int, ...], shapes: str = "(4, 4)") -> RankFacts:
    passes = tuple(tuple(Place("backward", "train.py", line) for line in step) for step in lines)
    return RankFacts(steps=passes, shapes=shapes)


def test_other_epochs_and_seeds_are_found() -> None:
    one = draws((100, 0, 0, True, False), (100, 0, 1, True, False))
    other = draws((100, 0, 0, True, False), (100, 7, 0, True, False))
    (hazard,) = compare_ranks([one, one, other])
    assert hazard.kind is HazardKind.DATA_ORDER
    assert (
        "seed is 0 on rank 0 and 7 on rank 2; epoch is 1 on rank 0 and 0 on rank 2" in hazard.what
    )
    assert [place.role for place in hazard.places] == ["rank 0", "rank 2"]


def test_another_branch_is_found_with_its_line() -> None:
    (hazard,) = compare_ranks([steps((5,), (5,)), steps((5,), (5, 8))])
    assert hazard.kind is HazardKind.CONTROL_FLOW
    assert [(place.role, place.number) for place in hazard.places] == [("rank 1", 8)]
    (hazard,) = compare_ranks([steps((5,)), steps((6,))])
    assert [place.number for place in hazard.places] == [5, 6]


def test_ranks_with_other_parameters_or_fewer_steps_may_differ() -> None:
    assert compare_ranks([steps((5,)), steps((7,), shapes="(8,)")]) == []
    assert compare_ranks([steps((5,), (5,)), steps((5,))]) == []


def test_facts_survive_a_file() -> None:
    facts = RankFacts(draws((3, 0, 1, True, False)).draws, steps((5, 6)).steps, "(4,)")
    assert RankFacts.from_json(json.loads(json.dumps(facts.as_json()))) == facts


def test_gradients_that_are_never_cleared_are_found_in_every_way_of_spreading(
    tmp_path: Path,
) -> None:
    file = str(Path(__file__).with_name("hazards_of_ranks.py"))
    run_forked(file, "run_rank", [str(tmp_path)], RANKS)
    expected = {
        f"{way}, {clearing}": ["ACCUMULATED"] if clearing == "never" else []
        for way in WAYS
        for clearing in CLEARINGS
    }
    for rank in range(RANKS):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected
