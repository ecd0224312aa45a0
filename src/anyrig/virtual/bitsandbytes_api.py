"""The library bitsandbytes, where it is installed: weights and optimiser states of 4 and 8 bits.

Its kernels for CUDA start real ones, and end the process when they find no card. It has others, for
the CPU and in PyTorch alone; they run here, each operator whole on the host. So a card's memory
counts what an operator takes and gives, as with bitsandbytes' own kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from .import_watch import ImportWatch

LIBRARY = "bitsandbytes"
LOADER = f"{LIBRARY}.cextension"
KERNELS = f"{LIBRARY}.backends.cuda.ops"


def patch(core: ModuleType) -> None:
    """Let bitsandbytes compute on the host, whether it has been imported or will be."""
    if LOADER in sys.modules:
        _compute_on_host(core)
        return

    def load_without_cuda(load: Callable[[], None]) -> None:
        with _cuda_hidden_from_library():
            load()

    def compute_on_host_instead(_load: Callable[[], None]) -> None:
        _compute_on_host(core)

    # The library may be half imported: it imports torch before these two, and the kernels last.
    sys.meta_path.insert(0, ImportWatch(LOADER, load_without_cuda))
    sys.meta_path.insert(0, ImportWatch(KERNELS, compute_on_host_instead))


@contextmanager
def _cuda_hidden_from_library() -> Iterator[None]:
    """Let the library load its code for the CPU; other modules that it imports see the cards."""
    is_available = torch.cuda.is_available

    def is_available_elsewhere() -> bool:
        asked_by = sys._getframe(1).f_globals.get("__name__", "")
        return asked_by.partition(".")[0] != LIBRARY and is_available()

    torch.cuda.is_available = is_available_elsewhere
    try:
        yield
    finally:
        torch.cuda.is_available = is_available


def _compute_on_host(core: ModuleType) -> None:
    core.run_library_on_host(LIBRARY)
    functional: Any = sys.modules.get(f"{LIBRARY}.functional")
    if functional is None:
        return
    # Pages come from CUDA's managed memory, which the host reads and writes as its own.
    functional.get_paged = _pages
    functional.fill = _fill
    functional.prefetch_tensor = _prefetch


def _pages(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device = torch.device("cuda", 0),  # noqa: B008 - as bitsandbytes has it
) -> torch.Tensor:
    pages: Any = torch.empty(shape, dtype=dtype, device="cpu")
    pages.is_paged = True
    pages.page_deviceid = device.index
    return pages  # type: ignore[no-any-return]


def _fill(
    A: torch.Tensor,  # noqa: N803 - as bitsandbytes has it
    value: float,
    device: object = None,
    prefetch: bool = True,
) -> None:
    A.fill_(value)


def _prefetch(
    A: torch.Tensor,  # noqa: N803 - as bitsandbytes has it
    to_cpu: bool = False,
) -> None:
    """Leave the pages where they are."""
