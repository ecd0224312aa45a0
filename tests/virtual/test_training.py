"""Training on several ranks gives the same parameters as training on all data in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Outcome, names_of_cases, run_cases

FILES = ("training_replicas", "training_shards", "training_stages")
RANKS = {"": 4, "shape-only": 2}
IMPORTS = "sympy,torch._dynamo,torch.distributed.tensor.parallel,torch.distributed.checkpoint"


@pytest.fixture(scope="module", params=RANKS, ids=["compute", "shape-only"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    mode = request.param
    folder: Path = tmp_path_factory.mktemp("training")
    return run_cases(FILES, RANKS[mode], folder, seconds=400, mode=mode, imports=IMPORTS)


@pytest.mark.parametrize(
    "case", [f"{file}.{case}" for file in FILES for case in names_of_cases(file)]
)
def test_training(outcome: Outcome, case: str) -> None:
    outcome.check(case)


def test_ranks_exit_successfully(outcome: Outcome) -> None:
    assert set(outcome.exit_codes) == {0}, outcome.output
