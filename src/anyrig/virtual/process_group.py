"""Registration of the virtual GPUs' process groups as NCCL's in `torch.distributed`.

`torch.distributed` finds NCCL's process groups by their class names. The classes here have the same
names, so `init_process_group`, `new_group` and callers of `is_nccl_available()` work unchanged.

===========  ====================  ===================================================
backend      class                 in PyTorch
===========  ====================  ===================================================
nccl         ProcessGroupNCCL      until 2.14, and with TORCH_DIST_USE_NCCL2=0
nccl         ProcessGroupNCCL2     from 2.15 on; in 2.14 with TORCH_DIST_USE_NCCL2=1
nccl-legacy  ProcessGroupNCCL      from 2.14 on
nccl2        ProcessGroupNCCL2     from 2.14 on
nccl-lazy    ProcessGroupNCCLLazy  from 2.14 on
===========  ====================  ===================================================
"""

from __future__ import annotations

import atexit
import datetime
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from . import flight_recorder, lone_rank, rebinding
from .roll_call_sockets import connect_to_rank_0, own_address

# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: kProcessGroupNCCLDefaultTimeout.
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=10)

# The extension has those that this version of PyTorch has.
_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")

# Addresses of this host, for which gloo needs no name resolution.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def patch(core: ModuleType, *, assumed_ranks: int | None = None) -> None:
    """Register the process groups with `torch.distributed` in place of NCCL's.

    With `assumed_ranks`, rank 0 of so many runs alone (`lone_rank.py`).
    """
    if not hasattr(core, "ProcessGroupNCCL"):
        return  # PyTorch was built without torch.distributed or without gloo
    # Imported here because PyTorch may be built without these modules. `Any`, because they do not
    # declare the attributes set below.
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    constants: Any = importlib.import_module("torch.distributed.constants")
    bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    for version in ("get_build_nccl_version", "get_runtime_nccl_version"):
        setattr(core.ProcessGroupNCCL, version, staticmethod(torch.cuda.nccl.version))
    classes = {name: getattr(core, name) for name in _CLASSES if hasattr(core, name)}
    # The originals of a CUDA build.
    originals = {name: getattr(bindings, name) for name in classes if hasattr(bindings, name)}
    rebinding.replace_in_torch(originals, classes)
    places: list[Any] = [bindings, c10d, sys.modules["torch.distributed"]]
    for name, group_class in classes.items():
        group_class.__module__ = c10d.__name__
        for module in places:
            setattr(module, name, group_class)
        if name not in c10d.__all__:
            c10d.__all__ += [name]
    c10d._NCCL_AVAILABLE = True
    for module in (constants, c10d):
        if module.default_pg_nccl_timeout is None:
            module.default_pg_nccl_timeout = _DEFAULT_TIMEOUT
    # TORCH_DISTRIBUTED_DEBUG=DETAIL calls this function, which a build without NCCL does not have.
    if not hasattr(bindings, "_hash_tensors"):
        bindings._hash_tensors = _hash_tensors
    core.set_connect(connect if assumed_ranks is None else lone_rank.connect)
    if assumed_ranks is not None:
        lone_rank.patch(core, assumed_ranks)
    core.install_ddp_timer()
    core.install_gloo_collectives()
    flight_recorder.patch(core, bindings)
    atexit.register(_close_groups, core)


def connect(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> tuple[Any, list[int]]:
    """Connect the ranks of a new group.

    Returns:
        The gloo group that transfers the data, and the sockets over which the ranks agree on each
        collective (`roll_call_sockets`).
    """
    dist: Any = importlib.import_module("torch.distributed")
    # Under torchrun, the store outlives a group. A new group with the same prefix would find the
    # addresses of the old one, so the prefix includes the number of groups that the rank has
    # joined.
    made = store.add(f"virtual_nccl/groups_of_rank/{rank}", 1)
    store = dist.PrefixStore(f"virtual_nccl/{made}", store)
    options = dist.ProcessGroupGloo._Options()
    options._devices = _gloo_devices(dist.ProcessGroupGloo)
    options._threads = 1  # these threads run gloo's collectives, which are not used
    options._timeout = timeout
    gloo = dist.ProcessGroupGloo(store, rank, size, options)
    on_loopback, interfaces = _place_of_sockets()
    host = "127.0.0.1" if on_loopback else own_address(interfaces.partition(",")[0])
    return gloo, connect_to_rank_0(store, rank, size, host, timeout.total_seconds())


def _place_of_sockets() -> tuple[bool, str]:
    """Return whether all ranks are on this host, and the names of the interfaces to use, if set.

    Without MASTER_ADDR, as with a store in a file, sockets stay on the loopback unless
    GLOO_SOCKET_IFNAME names an interface.
    """
    address, interfaces = os.environ.get("MASTER_ADDR"), os.environ.get("GLOO_SOCKET_IFNAME", "")
    on_loopback = not interfaces if address is None else address in _LOOPBACK
    return on_loopback, "" if on_loopback else interfaces


def _gloo_devices(gloo: Any) -> list[Any]:
    """Return the gloo devices of this process, selected like those of `ProcessGroupGloo`.

    All groups share the devices: the thread of a device wakes up 100 times per second, and some
    programs create hundreds of groups.
    """
    return _devices_of_process(gloo, os.getpid(), *_place_of_sockets())


@functools.cache
def _devices_of_process(gloo: Any, process: int, on_loopback: bool, interfaces: str) -> list[Any]:
    with _threads_that_do_not_preempt():
        if on_loopback:
            return [gloo.create_device(hostname="127.0.0.1")]
        if interfaces:
            return [gloo.create_device(interface=name) for name in interfaces.split(",")]
        return [gloo.create_default_device()]


@contextmanager
def _threads_that_do_not_preempt() -> Iterator[None]:
    """Let each thread that starts in this context wait for its turn when it wakes up.

    A sender holds the lock of its connection while it writes to the socket, and that wakes up the
    receiver's gloo thread. If the receiver's thread preempts the sender, the answer arrives while
    the lock is held, and the sender's gloo thread polls the lock for a whole time slice. With more
    ranks than cores, most of the CPU time would go to such polling.
    """
    if not _set_policy("SCHED_OTHER", "SCHED_BATCH"):
        yield
        return
    try:
        yield
    finally:
        _set_policy("SCHED_BATCH", "SCHED_OTHER")


def _set_policy(before: str, after: str) -> bool:
    """Change the scheduling policy of this thread, and return whether that was possible."""
    if sys.platform != "linux" or os.sched_getscheduler(0) != getattr(os, before):
        return False
    try:
        os.sched_setscheduler(0, getattr(os, after), os.sched_param(0))
    except OSError:  # a sandbox may forbid the call
        return False
    return True


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    return hash(tuple(tensor.cpu().numpy().tobytes() for tensor in tensors))


def _close_groups(core: ModuleType) -> None:
    # The interpreter sets `sys.last_type` when an uncaught exception ends the program.
    core.close_groups(hasattr(sys, "last_type"))
