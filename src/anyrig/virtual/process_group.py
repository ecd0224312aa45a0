"""NCCL's place in `torch.distributed`: the process group of virtual devices.

`torch.distributed` knows NCCL's process group by the name of its class. The class here has that
name, so `init_process_group`, `new_group` and all that asks `is_nccl_available()` go their usual
ways; nothing of them is replaced.
"""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
import sys
from types import ModuleType
from typing import Any

import torch

from . import flight_recorder, rebinding, symmetric_memory

# torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: kProcessGroupNCCLDefaultTimeout.
_DEFAULT_TIMEOUT = datetime.timedelta(minutes=10)

# Names of this machine, for which gloo needs no look-up.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

# By process and by what names them.
_devices: dict[tuple[int, bool, str], list[Any]] = {}


def patch(core: ModuleType) -> None:
    """Put the process group where `torch.distributed` looks for NCCL's."""
    if not hasattr(core, "ProcessGroupNCCL"):
        return  # a PyTorch without torch.distributed or without gloo
    # Looked up here: a PyTorch may be built without them. They have no types for what is set.
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    constants: Any = importlib.import_module("torch.distributed.constants")
    bindings: Any = importlib.import_module("torch._C._distributed_c10d")
    group_class = core.ProcessGroupNCCL
    group_class.__module__ = c10d.__name__
    for version in ("get_build_nccl_version", "get_runtime_nccl_version"):
        setattr(group_class, version, staticmethod(torch.cuda.nccl.version))
    if hasattr(bindings, "ProcessGroupNCCL"):  # NCCL's own, in a build for CUDA
        rebinding.replace_in_torch(
            {"ProcessGroupNCCL": bindings.ProcessGroupNCCL}, {"ProcessGroupNCCL": group_class}
        )
    places: list[Any] = [bindings, c10d, sys.modules["torch.distributed"]]
    for module in places:
        module.ProcessGroupNCCL = group_class
    # From 2.15 on "nccl" leads to another class, which these make; of it we have none. The way
    # to the one here is still there; all are looked up when a backend is first asked for.
    for another in ("_create_nccl2_process_group", "_create_nccl_lazy_process_group"):
        if hasattr(c10d, another):
            setattr(c10d, another, c10d._create_nccl_process_group)
    c10d._NCCL_AVAILABLE = True
    if "ProcessGroupNCCL" not in c10d.__all__:
        c10d.__all__ += ["ProcessGroupNCCL"]
    for module in (constants, c10d):
        if module.default_pg_nccl_timeout is None:
            module.default_pg_nccl_timeout = _DEFAULT_TIMEOUT
    # A build without NCCL lacks what TORCH_DISTRIBUTED_DEBUG=DETAIL logs of objects.
    if not hasattr(bindings, "_hash_tensors"):
        bindings._hash_tensors = _hash_tensors
    core.set_make_transport(make_transport)
    core.install_ddp_timer()
    core.install_gloo_collectives()
    flight_recorder.patch(core, bindings)
    symmetric_memory.patch(core, bindings)
    atexit.register(_close_groups, core)


def make_transport(store: Any, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """Return the gloo group that carries the bytes of a group of `size` ranks."""
    dist: Any = importlib.import_module("torch.distributed")
    # A group that is made again meets in the same store, where the addresses of the one before
    # still are: under torchrun the store outlives it. So each rank counts the groups it was in.
    made = store.add(f"virtual_nccl/groups_of_rank/{rank}", 1)
    store = dist.PrefixStore(f"virtual_nccl/{made}", store)
    options = dist.ProcessGroupGloo._Options()
    options._devices = _gloo_devices(dist.ProcessGroupGloo)
    options._threads = 1  # they run gloo's own collectives, which are not used
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _gloo_devices(gloo: Any) -> list[Any]:
    """Return gloo's devices of this process, chosen as by `ProcessGroupGloo` itself.

    They are shared by all groups, since the thread of each wakes up a hundred times a second, and
    some programs make groups by the hundred.
    """
    on_loopback = os.environ.get("MASTER_ADDR") in _LOOPBACK
    interfaces = "" if on_loopback else os.environ.get("GLOO_SOCKET_IFNAME", "")
    key = (os.getpid(), on_loopback, interfaces)
    if key not in _devices:
        if on_loopback:
            devices = [gloo.create_device(hostname="127.0.0.1")]
        elif interfaces:
            devices = [gloo.create_device(interface=name) for name in interfaces.split(",")]
        else:
            devices = [gloo.create_default_device()]
        _devices[key] = devices
    return _devices[key]


def _hash_tensors(tensors: list[torch.Tensor]) -> int:
    return hash(tuple(tensor.cpu().numpy().tobytes() for tensor in tensors))


def _close_groups(core: ModuleType) -> None:
    # An error that ends the program was printed before this is called, and left here.
    core.close_groups(hasattr(sys, "last_type"))
