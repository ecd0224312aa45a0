"""A rehearsal of rank 0 alone, which stands for all ranks of a symmetric program.

::

    rank 0 ──── collectives of GPUs ──▶ csrc/collectives/lone_rank.h
      │                                 the clock's time for all ranks, answered by rank 0
      ├──────── collectives of CPUs ──▶ csrc/collectives/lone_gloo.h
      └──────── the store ────────────▶ LoneStore
    rank 1 … rank 1023                  do not run

The rig has a GPU for each rank, and rank n uses GPU n.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from types import ModuleType
from typing import Any

from ..errors import VirtualRigError
from .rig import VirtualRig


def check_lone_rank(rig: VirtualRig, *, shape_only: bool) -> None:
    """Check that rank 0 can stand for a rank on each GPU of `rig`.

    Raises:
        VirtualRigError: data would be computed, there is one rank, or GPUs or nodes differ.
    """
    if not shape_only:
        raise VirtualRigError(
            "one rank cannot compute what the others would, so lone_rank needs shape_only=True"
        )
    if len(rig.devices) < 2:
        raise VirtualRigError(
            f"the rig {rig} has one GPU, and lone_rank needs one for each of several ranks; write "
            "for example 2x(8xH100-SXM), or drop lone_rank"
        )
    sizes = Counter(device.node for device in rig.devices)
    if len(set(sizes.values())) > 1 or len({device.key for device in rig.devices}) > 1:
        raise VirtualRigError(
            f"rank 0 stands for all ranks only if their GPUs and nodes are equal, and those of "
            f"{rig} are not; rehearse every rank in a process of its own, without lone_rank"
        )


def connect(*_: object) -> tuple[None, list[int]]:
    """Connect no ranks: a group without a transport answers its collectives by itself."""
    return None, []


def patch(core: ModuleType, ranks: int) -> None:
    """Let `torch.distributed` make groups of many ranks without waiting for any of them."""
    # Imported here because PyTorch may be built without them.
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    version = importlib.import_module("torch").__version__
    from .lone_store import LoneStore

    if not hasattr(rendezvous, "_create_c10d_store"):
        raise VirtualRigError(
            f"rank 0 cannot stand for all ranks with torch {version}, which makes the "
            "store of a group in another way; use a version of PyTorch that anyrig supports"
        )
    store = LoneStore(ranks)
    # Private: the function by which `env://` and `tcp://` make their store. TCPStore waits until
    # all ranks have connected, and `register_rendezvous_handler` refuses schemes that exist.
    rendezvous._create_c10d_store = lambda *_, **__: store
    # The constructor of PyTorch's class of this name connects all ranks. `torch.distributed` finds
    # the class by its name.
    core.LoneGloo.__name__ = core.LoneGloo.__qualname__ = "ProcessGroupGloo"
    places: list[Any] = [c10d, sys.modules["torch.distributed"]]
    for module in places:
        module.ProcessGroupGloo = core.LoneGloo
