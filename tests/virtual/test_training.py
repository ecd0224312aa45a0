"""Training on several ranks gives the same parameters as training on all data in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from ranks import Outcome, names_of_cases, run_cases

FILES = ("training_replicas", "training_shards", "training_tensors", "training_stages")
# For each mode: the argument of `run_cases` and the number of ranks.
MODES = {"compute": ("", 4), "shape-only": ("shape-only", 2)}
IMPORTS = "sympy,torch._dynamo,torch.distributed.tensor.parallel,torch.distributed.checkpoint"


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Outcome]:
    """A function that returns the outcome of a file in a mode and runs its world on first use."""

    @cache
    def outcome(mode: str, file: str) -> Outcome:
        argument, size = MODES[mode]
        folder = tmp_path_factory.mktemp(file)
        return run_cases([file], size, folder, seconds=400, mode=argument, imports=IMPORTS)

    return outcome


in_each_mode = pytest.mark.parametrize(
    "mode", ["compute", pytest.param("shape-only", marks=pytest.mark.sweep)]
)


@pytest.mark.parametrize(
    ("file", "case"), [(file, case) for file in FILES for case in names_of_cases(file)]
)
@in_each_mode
def test_training(
    outcome_of: Callable[[str, str], Outcome], mode: str, file: str, case: str
) -> None:
    outcome_of(mode, file).check(f"{file}.{case}")


@pytest.mark.parametrize("file", FILES)
@in_each_mode
def test_ranks_exit_successfully(
    outcome_of: Callable[[str, str], Outcome], mode: str, file: str
) -> None:
    outcome = outcome_of(mode, file)
    assert set(outcome.exit_codes) == {0}, outcome.output
