"""Where ranks differ that should do the same."""

from __future__ import annotations

import json

from anyrig.verification import HazardKind
from anyrig.verification.hazards.hazard import Place
from anyrig.verification.hazards.ranks import Draw, RankFacts, compare_ranks
from forked_programs import run_forked


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


SHARDED = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from anyrig.verification import watch_hazards

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for clears in (False, True):
    with watch_hazards(warn=False) as hazards:
        model = fully_shard(torch.nn.Linear(4, 2), mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            if clears:
                optimizer.zero_grad(set_to_none=False)
    print([hazard.kind.name for hazard in hazards])
dist.destroy_process_group()
"""


def test_gradients_in_shards_that_are_never_cleared_are_found() -> None:
    done = run_forked("-c", SHARDED)
    assert done.stdout.splitlines() == ["['ACCUMULATED']", "[]"], done.stderr
