"""Processes that were started without torchrun's variables, or with empty ones."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from anyrig.devices.rank import LocalRank
from anyrig.errors import LaunchError
from anyrig.processes.group.membership import _read_environment
from anyrig.processes.group.other_launchers import warn_of_other_launcher

MPIRUN = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}
SRUN = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            MPIRUN,
            "mpirun has started this process as one of 4 .*OMPI_COMM_WORLD_SIZE=4.*anyrig run",
        ),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, r"one of 2 \(PMI_SIZE=2\)"),
        ({"MV2_COMM_WORLD_SIZE": "3", "MV2_COMM_WORLD_RANK": "1"}, "mpirun .* one of 3"),
        (SRUN, r"srun has started this process as one of 4 \(SLURM_NTASKS=4\)"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "2"}, r"one of 2 \(SLURM_STEP_NUM_TASKS=2\)"),
        ({**MPIRUN, "RANK": "", "WORLD_SIZE": ""}, "WORLD_SIZE=1"),
    ],
)
def test_a_process_that_would_train_alone_is_warned(environment: Any, words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        warn_of_other_launcher(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": ""},
        {**MPIRUN, "WORLD_SIZE": "1"},
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"},  # of sbatch
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_a_process_that_is_meant_to_be_alone_is_not_warned(environment: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_launcher(environment)


def test_empty_variables_are_not_set() -> None:
    empty = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "")
    assert _read_environment(empty) is None
    assert _read_environment({**empty, "MASTER_ADDR": "localhost"}) is None
    assert LocalRank.read({"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}) is None
    with pytest.raises(LaunchError, match="the environment has RANK=1, but no WORLD_SIZE and no"):
        _read_environment({**empty, "RANK": "1"})
