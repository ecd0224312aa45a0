"""Running an action as soon as the program has imported torch, and importing torch faster.

A script may set ``CUDA_VISIBLE_DEVICES`` or ``OMP_NUM_THREADS`` above its ``import torch``. If
anyrig imported torch before running the script, the variables would have no effect.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator

from .import_watch import ImportWatch


def when_torch_is_imported(action: Callable[[], object]) -> None:
    """Call `action` now if torch has been imported, else at the end of the import of torch."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, TorchWatch(action))


def collect_nothing_in_imports() -> None:
    """Let the first imports of torch and of its compiler run without garbage collections.

    Collections take a fifth of the time of both imports, and free nothing. An optimizer's first
    step imports the compiler.
    """
    for module in {"torch", "torch._dynamo"} - sys.modules.keys():
        sys.meta_path.insert(0, ImportWatch(module, _load))


class TorchWatch(ImportWatch):
    """A finder that calls `action` once torch has been imported, without garbage collections."""

    def __init__(self, action: Callable[[], object]) -> None:
        def load_and_act(load: Callable[[], None]) -> None:
            _load(load)
            action()

        super().__init__("torch", load_and_act)


def _load(load: Callable[[], None]) -> None:
    with without_collections():
        load()


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage within the block, and visit what it made in full collections alone."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation; the next collection would visit all of it
        gc.enable()
