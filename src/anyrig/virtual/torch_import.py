"""Something to do as soon as torch has been imported, and not before.

A script may set ``CUDA_VISIBLE_DEVICES`` or ``OMP_NUM_THREADS`` above its ``import torch``. Were
torch imported on its behalf before it starts, that would come too late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from .import_watch import ImportWatch


def when_torch_is_imported(action: Callable[[], object]) -> None:
    """Call `action` once torch has been imported: now if it has been, else within that import."""
    if "torch" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, TorchWatch(action))


class TorchWatch(ImportWatch):
    """Finds torch through the finders behind it, and calls `action` once it has been imported."""

    def __init__(self, action: Callable[[], object]) -> None:
        def load_and_act(load: Callable[[], None]) -> None:
            load()
            action()

        super().__init__("torch", load_and_act)
