"""`anyrig rehearse --ranks`: run rank 0 of many ranks alone, and assume the others to be alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from .group_flags import GroupFlags
from .run import single_rank_variables

if TYPE_CHECKING:
    from ..virtual.rig import VirtualRig

RANKS = "--ranks"

RANK_COUNT = Annotated[
    Optional[int],  # noqa: UP045 - typer reads it on Python 3.10 too
    typer.Option(
        RANKS,
        metavar="N",
        help="Run rank 0 of N alone, without data, on as many nodes like --rig as that takes. "
        "All ranks are assumed to be alike, as under DDP, FSDP2 and tensor parallelism.",
    ),
]


def read_ranks(ranks: int, node: VirtualRig, flags: GroupFlags) -> VirtualRig:
    """Return the rig that has a GPU for each rank: as many nodes like `node` as that takes.

    Raises:
        typer.BadParameter: `ranks` is not a multiple of the node's GPUs, or is too small or too
            large; the rig has several nodes or unequal GPUs; or another flag asks for a process per
            rank.
    """
    from ..virtual.rig import MOST_NODES

    if flags.given:
        raise typer.BadParameter(
            "it runs rank 0 in this process alone, and a flag for ranks, such as --device or "
            "--nproc-per-node, starts each of them; drop one of the two",
            param_hint=RANKS,
        )
    if node.node_count > 1 or len({device.key for device in node.devices}) > 1:
        raise typer.BadParameter(
            f"all ranks are assumed to be alike, so --rig names one node of equal GPUs, such as "
            f"8xH100-SXM, and not {node}",
            param_hint=RANKS,
        )
    gpus = len(node.devices)
    if not 2 <= ranks <= MOST_NODES * gpus:
        raise typer.BadParameter(
            f"it must be from {max(2, gpus)} to {MOST_NODES * gpus} with the rig {node}, not "
            f"{_shown(ranks)}; one rank needs no {RANKS}",
            param_hint=RANKS,
        )
    if ranks % gpus:
        below = max(1, ranks // gpus) * gpus
        raise typer.BadParameter(
            f"{ranks} ranks do not fill nodes of {gpus} GPUs, which are {node}; write {below} or "
            f"{below + gpus}, or another node",
            param_hint=RANKS,
        )
    return node.repeated(ranks // gpus)


def rank_0_variables(rig: VirtualRig) -> dict[str, str]:
    """Return torchrun's environment variables for rank 0, where each GPU of `rig` has one rank.

    Raises:
        typer.BadParameter: ``CUDA_VISIBLE_DEVICES`` hides GPUs.
    """
    from ..rehearsal.placement import Placement

    own = Placement.on(rig, "all")
    gpus = len(rig.devices_of_node(0))
    if own.processes != gpus:
        raise typer.BadParameter(
            f"CUDA_VISIBLE_DEVICES shows {own.processes} of the {gpus} GPUs of a node; unset it",
            param_hint=RANKS,
        )
    sizes = {"WORLD_SIZE": len(rig.devices), "GROUP_WORLD_SIZE": rig.node_count}
    return (
        single_rank_variables()
        | own.environment_of(0)
        | {name: str(count) for name, count in sizes.items()}
        # or `anyrig.spread` would open a store of its own, as rank 0, and wait for the others
        | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    )


def _shown(ranks: int) -> str:
    text = str(ranks)
    return text if len(text) <= 20 else f"{text[:20]}…"
