"""The flags of `anyrig run` that describe a group of ranks, shared with other commands.

Most are torchrun's. `torchrun_flags` interprets them as torchrun does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Optional, get_type_hints

import typer

from ..devices.environment import DEVICE_VARIABLE

# typer reads these types at run time, on Python 3.10 too, so they are Optional.
_Text = Optional[str]  # noqa: UP045
_Count = Optional[int]  # noqa: UP045
_Number = Optional[float]  # noqa: UP045
_Switch = Optional[bool]  # noqa: UP045
_Folder = Optional[Path]  # noqa: UP045


# The headings of the help.
_RANKS, _NODES = "Ranks", "Nodes"
_OUTPUT = "Output of the ranks"
_WITHOUT_EFFECT = "Accepted from torchrun, without effect"


def _folder(text: str) -> Path:
    if not text:  # pathlib would return the current folder
        raise ValueError("the folder's name is empty")
    return Path(text)


def torchrun_option(*names: str, **settings: Any) -> Any:
    """Return an option that an environment variable such as PET_NNODES can set, as in torchrun."""
    variable = "PET_" + names[0].removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, envvar=variable, show_envvar=False, **settings)


@dataclass(frozen=True)
class GroupFlags:
    """The flags as given on the command line; None means not given."""

    device: Annotated[
        _Text,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="The devices of the ranks: auto, all, cpu, cuda:1, 0,2, GPU-8932f937 (default: "
            f"the environment variable {DEVICE_VARIABLE}, else auto).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    processes_per_node: Annotated[
        _Text,
        torchrun_option(
            "--nproc-per-node",
            metavar="N|gpu|cpu|auto",
            help="Workers (ranks) per node: a number; gpu: one per GPU; cpu: one per core; auto: "
            "gpu if there is a GPU, else cpu (default: one per device).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    processes_per_device: Annotated[
        _Count,
        typer.Option(
            "--nproc-per-device",
            metavar="N",
            min=1,
            help="Ranks per device, instead of --nproc-per-node (default: 1).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    nodes: Annotated[
        _Text,
        torchrun_option(
            "--nnodes",
            metavar="N|MIN:MAX",
            help="Number of nodes, or the minimum and maximum number (default: 1).",
            rich_help_panel=_NODES,
        ),
    ] = None
    node_rank: Annotated[
        _Count,
        torchrun_option(
            "--node-rank",
            metavar="N",
            min=0,
            help="Rank of this node, from 0: its GROUP_RANK (default: the next free number).",
            rich_help_panel=_NODES,
        ),
    ] = None
    standalone: Annotated[
        _Switch,
        torchrun_option(
            "--standalone",
            help="One node: ignore --rdzv-endpoint, --master-addr and the other flags of the "
            "rendezvous.",
            rich_help_panel=_NODES,
        ),
    ] = None
    master_address: Annotated[
        _Text,
        torchrun_option(
            "--master-addr",
            metavar="HOST",
            help="Address of the master node, the rendezvous of several nodes (default: "
            "127.0.0.1).",
            rich_help_panel=_NODES,
        ),
    ] = None
    master_port: Annotated[
        _Count,
        torchrun_option(
            "--master-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Port on the master node (default: 29500). With one node: the ranks' "
            "MASTER_PORT, if the port is free.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_backend: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-backend",
            metavar="c10d|static",
            help="Rendezvous backend. Both do the same here, except that c10d ignores --node-rank.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_endpoint: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-endpoint",
            metavar="HOST[:PORT]",
            help="Rendezvous endpoint of several nodes, the same on every node (default port: "
            "29400). With one node, localhost:0 means any free port.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_id: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-id",
            metavar="NAME",
            help="Job id, the same on every node. It separates jobs that use the same endpoint.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_conf: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-conf",
            metavar="KEY=VALUE,…",
            help="Rendezvous configuration: join_timeout and timeout, in seconds, set "
            "--rdzv-timeout; torchrun's other keys have no effect.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_timeout_seconds: Annotated[
        _Number,
        typer.Option(
            "--rdzv-timeout",
            metavar="SECONDS",
            help="How long a node waits at the rendezvous for the others (default: 600).",
            rich_help_panel=_NODES,
        ),
    ] = None
    max_restarts: Annotated[
        _Count,
        torchrun_option(
            "--max-restarts",
            metavar="N",
            min=0,
            help="Maximum number of restarts of all ranks after a rank has failed (default: 0).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    timeout_seconds: Annotated[
        _Number,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="Timeout of collectives, unless the script passes a timeout to "
            "init_process_group.",
            rich_help_panel=_RANKS,
        ),
    ] = None
    local_address: Annotated[
        _Text,
        torchrun_option(
            "--local-addr",
            metavar="HOST",
            help="Address of this node for the other nodes (default: the address of the network "
            "interface that leads to the rendezvous endpoint).",
            rich_help_panel=_NODES,
        ),
    ] = None
    log_dir: Annotated[
        _Folder,
        torchrun_option(
            "--log-dir",
            metavar="FOLDER",
            parser=_folder,
            help="Folder for the log files of each rank's stdout and stderr.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    redirects: Annotated[
        _Text,
        torchrun_option(
            "--redirects",
            "-r",
            metavar="0-3|RANK:0-3,…",
            help="Redirect streams to the log files only: 0 neither, 1 stdout, 2 stderr, 3 both; "
            "for all ranks, or per local rank.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    tee: Annotated[
        _Text,
        torchrun_option(
            "--tee",
            "-t",
            metavar="0-3|RANK:0-3,…",
            help="Tee streams to the log files and the console, in the format of --redirects "
            "(default: all streams that are not redirected).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    local_ranks_filter: Annotated[
        _Text,
        torchrun_option(
            "--local-ranks-filter",
            metavar="RANK,…",
            help="Show only the output of these local ranks (default: all).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    role: Annotated[
        _Text,
        torchrun_option(
            "--role",
            metavar="NAME",
            help="The ranks' ROLE_NAME; no other effect.",
            rich_help_panel=_RANKS,
        ),
    ] = None
    monitor_interval_seconds: Annotated[
        _Number,
        torchrun_option(
            "--monitor-interval",
            metavar="SECONDS",
            help="No effect: the agent checks the ranks every 0.1 s.",
            rich_help_panel=_WITHOUT_EFFECT,
        ),
    ] = None
    start_method: Annotated[
        _Text,
        torchrun_option(
            "--start-method",
            metavar="METHOD",
            help="spawn, fork or forkserver. No effect on scripts, as with torchrun.",
            rich_help_panel=_WITHOUT_EFFECT,
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, by field name."""
        return {name: value for name, value in vars(self).items() if value is not None}


def with_group_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add these flags to a typer command, which receives them as its argument `flags`."""
    types = get_type_hints(GroupFlags, include_extras=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.name != "flags"
    ]
    names = [field.name for field in fields(GroupFlags)]
    parameters += [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=types[name]
        )
        for name in names
    ]

    def with_flags(**values: Any) -> None:
        flags = GroupFlags(**{name: values.pop(name) for name in names})
        command(flags=flags, **values)

    with_flags.__name__, with_flags.__doc__ = command.__name__, _unwrapped(command.__doc__)
    with_flags.__annotations__ = {}  # typer falls back to those of the signature
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_flags


def _unwrapped(text: str | None) -> str | None:
    """Return a docstring with each paragraph on one line: typer keeps the line breaks."""
    if text is None:
        return None
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
