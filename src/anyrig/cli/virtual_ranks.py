"""The ranks of a script on virtual GPUs, from a command's flags."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .chosen_device import chosen_device, named_in_errors
from .group_flags import GroupFlags
from .torchrun_flags import count_ranks, hidden_streams, run_options

if TYPE_CHECKING:
    from ..processes.options import RunOptions
    from ..rehearsal.placement import Placement
    from ..virtual.rig import VirtualRig


def plan_ranks(rig: VirtualRig, flags: GroupFlags) -> tuple[Placement, RunOptions]:
    """Return the placement of the ranks that `flags` ask for, and the options of their group."""
    from ..errors import GroupOptionError
    from ..processes.options import read_node_counts
    from ..rehearsal.placement import Placement

    nodes = flags.nodes
    if nodes is None:
        nodes = "1" if flags.standalone else str(rig.node_count)
    fewest, most = read_node_counts(nodes)
    if rig.node_count < fewest:
        raise GroupOptionError(
            f"--nnodes {nodes} needs at least {fewest} nodes, and the rig {rig} has "
            f"{rig.node_count}; give the rig more nodes, as in 2x(8xH100-SXM)"
        )
    source, device = chosen_device(flags.device)
    with named_in_errors(source):
        placement = Placement.on(
            rig,
            "auto" if device is None else device,
            partial(count_ranks, flags),
            min(most, rig.node_count),
        )
    endpoint = flags.rdzv_endpoint
    if endpoint is None and flags.master_address is None:
        endpoint = "node0:29400"
    elif endpoint == "localhost:0":  # valid here for several nodes too: all are on this computer
        endpoint = "localhost"
    options = run_options(replace(flags, nodes=nodes, rdzv_endpoint=endpoint), placement.processes)
    hidden = hidden_streams(flags, placement.processes)
    # One launcher starts the ranks of all virtual nodes.
    return placement, replace(
        options,
        nodes="1",
        rdzv_endpoint=None,
        local_address=None,
        node_rank=None,
        hidden_streams=frozenset(
            (rank, stream)
            for rank, local_rank in enumerate(placement.local_ranks)
            for stream in ("stdout", "stderr")
            if (local_rank, stream) in hidden
        ),
    )
