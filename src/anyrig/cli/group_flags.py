"""The flags of `anyrig run` that describe a group of ranks, shared with other commands.

Most are torchrun's. `torchrun_flags` interprets them as torchrun does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..devices.environment import DEVICE_VARIABLE

# typer reads these types at run time, on Python 3.10 too, so they are Optional.
_Text = Optional[str]  # noqa: UP045
_Count = Optional[int]  # noqa: UP045
_Number = Optional[float]  # noqa: UP045
_Switch = Optional[bool]  # noqa: UP045
_Folder = Optional[Path]  # noqa: UP045


def _folder(text: str) -> Path:
    if not text:  # pathlib would return the current folder
        raise ValueError("the folder's name is empty")
    return Path(text)


def torchrun_option(*names: str, **settings: Any) -> Any:
    """Return an option that an environment variable such as PET_NNODES can set, as in torchrun."""
    variable = "PET_" + names[0].removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, envvar=variable, show_envvar=False, **settings)


# Options of torchrun under the headings of the help, and options of anyrig about ranks.
_of_ranks = partial(torchrun_option, rich_help_panel="Ranks")
_of_nodes = partial(torchrun_option, rich_help_panel="Nodes")
_of_output = partial(torchrun_option, rich_help_panel="Output of the ranks")
_without_effect = partial(torchrun_option, rich_help_panel="Accepted from torchrun, without effect")
_own_of_ranks = partial(typer.Option, rich_help_panel="Ranks")


@dataclass(frozen=True)
class GroupFlags:
    """The flags as given on the command line; None means not given."""

    device: Annotated[
        _Text,
        _own_of_ranks(
            "--device",
            metavar="DEVICE",
            help="The devices of the ranks: auto, all, cpu, cuda:1, 0,2, GPU-8932f937 (default: "
            f"the environment variable {DEVICE_VARIABLE}, else auto).",
        ),
    ] = None
    processes_per_node: Annotated[
        _Text,
        _of_ranks(
            "--nproc-per-node",
            metavar="N|gpu|cpu|auto",
            help="Workers (ranks) per node: a number; gpu: one per GPU; cpu: one per core; auto: "
            "gpu if there is a GPU, else cpu (default: one per device).",
        ),
    ] = None
    processes_per_device: Annotated[
        _Count,
        _own_of_ranks(
            "--nproc-per-device",
            metavar="N",
            min=1,
            help="Ranks per device, instead of --nproc-per-node (default: 1).",
        ),
    ] = None
    nodes: Annotated[
        _Text,
        _of_nodes(
            "--nnodes",
            metavar="N|MIN:MAX",
            help="Number of nodes, or the minimum and maximum number (default: 1).",
        ),
    ] = None
    node_rank: Annotated[
        _Count,
        _of_nodes(
            "--node-rank",
            metavar="N",
            min=0,
            help="Rank of this node, from 0: its GROUP_RANK (default: the next free number).",
        ),
    ] = None
    standalone: Annotated[
        _Switch,
        _of_nodes(
            "--standalone",
            help="One node: ignore --rdzv-endpoint, --master-addr and the other flags of the "
            "rendezvous.",
        ),
    ] = None
    master_address: Annotated[
        _Text,
        _of_nodes(
            "--master-addr",
            metavar="HOST",
            help="Address of the master node, the rendezvous of several nodes (default: "
            "127.0.0.1).",
        ),
    ] = None
    master_port: Annotated[
        _Count,
        _of_nodes(
            "--master-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port on the master node (default: 29500). With one node: the ranks' "
            "MASTER_PORT, if the port is free.",
        ),
    ] = None
    rdzv_backend: Annotated[
        _Text,
        _of_nodes(
            "--rdzv-backend",
            metavar="c10d|static",
            help="Rendezvous backend. Both do the same here, except that c10d ignores --node-rank.",
        ),
    ] = None
    rdzv_endpoint: Annotated[
        _Text,
        _of_nodes(
            "--rdzv-endpoint",
            metavar="HOST[:PORT]",
            help="Rendezvous endpoint of several nodes, the same on every node (default port: "
            "29400). With one node, localhost:0 means any free port.",
        ),
    ] = None
    rdzv_id: Annotated[
        _Text,
        _of_nodes(
            "--rdzv-id",
            metavar="NAME",
            help="Job id, the same on every node. It separates jobs that use the same endpoint.",
        ),
    ] = None
    rdzv_conf: Annotated[
        _Text,
        _of_nodes(
            "--rdzv-conf",
            metavar="KEY=VALUE,…",
            help="Rendezvous configuration: join_timeout or timeout: how many seconds a node waits "
            "for the others (default: 600); torchrun's other keys have no effect.",
        ),
    ] = None
    max_restarts: Annotated[
        _Count,
        _of_ranks(
            "--max-restarts",
            metavar="N",
            min=0,
            help="Maximum number of restarts of all ranks after a rank has failed (default: 0).",
        ),
    ] = None
    timeout_seconds: Annotated[
        _Number,
        _own_of_ranks(
            "--timeout",
            metavar="SECONDS",
            help="Timeout of collectives, unless the script passes a timeout to "
            "init_process_group.",
        ),
    ] = None
    local_address: Annotated[
        _Text,
        _of_nodes(
            "--local-addr",
            metavar="HOST",
            help="Address of this node for the other nodes (default: the address of the network "
            "interface that leads to the rendezvous endpoint).",
        ),
    ] = None
    log_dir: Annotated[
        _Folder,
        _of_output(
            "--log-dir",
            metavar="FOLDER",
            parser=_folder,
            help="Folder for the log files of each rank's stdout and stderr.",
        ),
    ] = None
    redirects: Annotated[
        _Text,
        _of_output(
            "--redirects",
            "-r",
            metavar="0-3|RANK:0-3,…",
            help="Redirect streams to the log files only: 0 neither, 1 stdout, 2 stderr, 3 both; "
            "for all ranks, or per local rank.",
        ),
    ] = None
    tee: Annotated[
        _Text,
        _of_output(
            "--tee",
            "-t",
            metavar="0-3|RANK:0-3,…",
            help="Tee streams to the log files and the console, in the format of --redirects "
            "(default: all streams that are not redirected).",
        ),
    ] = None
    local_ranks_filter: Annotated[
        _Text,
        _of_output(
            "--local-ranks-filter",
            metavar="RANK,…",
            help="Show only the output of these local ranks (default: all).",
        ),
    ] = None
    role: Annotated[
        _Text,
        _of_ranks(
            "--role",
            metavar="NAME",
            help="The ranks' ROLE_NAME; no other effect.",
        ),
    ] = None
    monitor_interval_seconds: Annotated[
        _Number,
        _without_effect(
            "--monitor-interval",
            metavar="SECONDS",
            help="No effect: the agent checks the ranks every 0.1 s.",
        ),
    ] = None
    start_method: Annotated[
        _Text,
        _without_effect(
            "--start-method",
            metavar="METHOD",
            help="spawn, fork or forkserver. No effect on scripts, as with torchrun.",
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, by field name."""
        return {name: value for name, value in vars(self).items() if value is not None}
