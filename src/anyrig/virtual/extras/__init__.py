"""Parts of CUDA that few programs use; the rest of the room knows them only through this list.

========================  ==========================================================
`jiterator`               kernels that a program writes in CUDA C++, with `host_kernel`
`symmetric_memory`        `torch.distributed._symmetric_memory`
`triton_api`              a program's own Triton kernels
`bitsandbytes_api`        weights and optimizer states of 4 and 8 bits
`driver`                  NVML's library and `nvidia-smi`
========================  ==========================================================

A module that needs an installed rig has a function `patch(core)`. Other files of the room import
this package and none of its modules, and an extra that is not listed here does not exist.
`csrc/extras/list.cpp` is the list of the extras in C++.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..rig import VirtualRig

PATCHES = ("jiterator", "symmetric_memory", "triton_api", "bitsandbytes_api")


def patch(core: ModuleType) -> None:
    """Install the extras in this process, which has a rig; `core` is the C++ extension."""
    for name in PATCHES:
        import_module(f".{name}", __name__).patch(core)


def environment(rig: VirtualRig, ledger: str) -> dict[str, str]:
    """Return the environment in which programs in any language find the driver's libraries.

    Args:
        rig: the GPUs that the libraries report.
        ledger: the file with the memory that each process holds.
    """
    from .driver import facts, library

    return library.driver_environment(facts.facts_of(rig, ledger))


def load_libraries(rig: VirtualRig, ledger: str) -> None:
    """Load the driver's libraries into this process, which was started without `environment`.

    Raises:
        NoCompilerError: a library must be built, and there is no compiler.
        BuildError: a library cannot be built.
    """
    from .driver import facts, library

    library.load_nvml(facts.facts_of(rig, ledger))


def build_libraries(*, again: bool = False) -> None:
    """Build the driver's libraries, if no intact copy exists or `again` is set.

    Raises:
        NoCompilerError: there is no compiler.
        BuildError: a library cannot be built.
    """
    from .driver import library

    library.build_library(again=again)
