"""Launchers that start several processes without telling PyTorch: mpirun, mpiexec and srun."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

# For each launcher, the variables it sets in every process: the number of processes, then others.
# Sources: the manuals of Open MPI (mpirun), of Hydra (MPICH and Intel MPI), of MVAPICH2, and of
# Slurm (srun). A job script of sbatch, which is one process, has no SLURM_STEP_ID.
_VARIABLES = {
    "mpirun": (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ),
    "srun": (
        ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_PROCID"),
        ("SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_PROCID"),
    ),
}


def warn_of_other_launcher(environment: Mapping[str, str]) -> None:
    """Warn if another launcher has started this process as one of several.

    Such processes do not know each other: each would train alone and write the same files.
    """
    found = _find(environment)
    if found is None or environment.get("WORLD_SIZE"):
        return
    launcher, size, variable = found
    warnings.warn(
        f"{launcher} has started this process as one of {size} ({variable}={size}), but without "
        "RANK and WORLD_SIZE, so each process computes alone, with all devices that it sees, and "
        "writes the same files. To train together, start one process on each node with anyrig run, "
        "or with torchrun. If the processes are independent, set WORLD_SIZE=1",
        stacklevel=4,
    )


def _find(environment: Mapping[str, str]) -> tuple[str, int, str] | None:
    for launcher, sets in _VARIABLES.items():
        for variable, *others in sets:
            size = environment.get(variable, "")
            if size.isdecimal() and all(environment.get(each) for each in others):
                return (launcher, int(size), variable) if int(size) > 1 else None
    return None
