"""Spread a module over processes of this node, which this process starts."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from ....devices.rig import Rig
from ....errors import SpreadError
from ....processes.host_memory import keep_own_freed_memory
from ...accumulation import check_accumulate
from ...asked import Asked
from ...layout import Layout, make_layout
from ...module_devices import device_types_of
from ...own_class import require_frozen
from ...plans import Replicas
from ...precision import read_precision
from ...shares.shares import choose_shares
from ...spread_module import SpreadModule
from ..replicas.engine import ReplicaEngine
from ..replicas.replicas import check_place
from .engine import ProcessEngine
from .pool import pool_of_process


def spread_over_processes(
    module: torch.nn.Module, rig: Rig, plan: Replicas, asked: Asked
) -> SpreadModule:
    """Return a module whose batches this process and its workers compute; see `anyrig.spread`."""
    if rig.lead.kind != "cpu":
        raise SpreadError(
            f"processes={plan.processes} computes on the CPU, but the rig is {_names(rig)}. Leave "
            'out processes=, or give rig="cpu"; for one process for each GPU, start the script '
            "with anyrig run"
        )
    if not hasattr(os, "memfd_create"):
        raise SpreadError(
            "processes= needs memory that processes share without a name, which this system does "
            "not have; leave it out, or start the script with anyrig run"
        )
    if device_types_of(module) - {"cpu"}:
        check_place(module, rig.lead.torch_device)
    require_frozen(module)
    layout = _layout(rig, plan, asked)
    if len(layout.devices) == 1:
        return SpreadModule(ReplicaEngine(module, layout, asked.loss))
    # Once, as each change of the number makes OpenMP start threads again.
    torch.set_num_threads(_threads_of_each(len(layout.devices)))
    keep_own_freed_memory()
    return SpreadModule(ProcessEngine(module, layout, asked.loss))


def _layout(rig: Rig, plan: Replicas, asked: Asked) -> Layout:
    number = 1 if plan.processes is True else int(plan.processes)
    layout = make_layout(rig, replace(plan, shares="even"), asked.output_device, asked.dim)
    devices = layout.devices * number
    threads = _threads_of_each(number)
    reason = (
        f"{number} processes, as asked: this one and {number - 1} that it starts and ends; each "
        f"computes its part with {threads} thread{'s' * (threads > 1)}, and all share the "
        f"parameters' memory ({rig.reason})"
    )
    return replace(
        layout,
        plan=plan,
        devices=devices,
        reason=layout.reason if number == 1 else reason,
        shares=choose_shares(plan.shares, devices),
        precision=read_precision(asked.precision, [rig.lead.torch_device]),
        accumulate=check_accumulate(asked.accumulate, asked.loss),
    )


def _threads_of_each(processes: int) -> int:
    return max(1, pool_of_process().threads // processes)


def _names(rig: Rig) -> str:
    return ", ".join(device.text for device in rig)
