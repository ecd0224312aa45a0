"""bitsandbytes on virtual GPUs: weights and optimizer states of 4 and 8 bits.

The library's CUDA kernels end the process when they find no GPU. Its kernels for the CPU and in
plain PyTorch run instead, each operator entirely on the host. So the temporaries inside an operator
use no GPU memory; only its inputs and results do, as with bitsandbytes' CUDA kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from ..import_watch import ImportWatch

LIBRARY = "bitsandbytes"
LOADER = f"{LIBRARY}.cextension"
KERNELS = f"{LIBRARY}.backends.cuda.ops"


def patch(core: ModuleType) -> None:
    """Make bitsandbytes compute on the host, whether it is imported before or after this call."""
    if LOADER in sys.modules:
        _compute_on_host(core)
        return

    def load_without_cuda(load: Callable[[], None]) -> None:
        with _cuda_hidden_from_library():
            load()

    def compute_on_host_instead(_load: Callable[[], None]) -> None:
        _compute_on_host(core)

    # This may run in the middle of the library's import, which imports torch before these two
    # modules and the kernels last.
    sys.meta_path.insert(0, ImportWatch(LOADER, load_without_cuda))
    sys.meta_path.insert(0, ImportWatch(KERNELS, compute_on_host_instead))


@contextmanager
def _cuda_hidden_from_library() -> Iterator[None]:
    """Within the block, report no CUDA to bitsandbytes, so that it loads its CPU library.

    Other modules that bitsandbytes imports still see the GPUs.
    """
    is_available = torch.cuda.is_available

    def is_available_to_others() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return caller.partition(".")[0] != LIBRARY and is_available()

    torch.cuda.is_available = is_available_to_others
    try:
        yield
    finally:
        torch.cuda.is_available = is_available


def _compute_on_host(core: ModuleType) -> None:
    core.run_library_on_host(LIBRARY)
    functional: Any = sys.modules.get(f"{LIBRARY}.functional")
    if functional is None:
        return
    # bitsandbytes takes pages from CUDA's managed memory, which the host can read and write.
    functional.get_paged = _pages
    functional.fill = _fill
    functional.prefetch_tensor = _prefetch


def _pages(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device = torch.device("cuda", 0),  # noqa: B008 - bitsandbytes' default
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
    """Do nothing: the pages stay in host memory."""
