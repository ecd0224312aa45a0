"""The flags of `anyrig run` that say which ranks a group has; other commands take them too.

Most are torchrun's, and `torchrun_flags` gives them torchrun's meaning.
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


# Under which headings the help lists them.
_RANKS, _NODES = "Ranks", "Nodes"
_OUTPUT = "Output of the ranks"
_WITHOUT_EFFECT = "For torchrun's command lines, without effect"


def _folder(text: str) -> Path:
    if not text:  # to pathlib the current folder
        raise ValueError("it names no folder")
    return Path(text)


def torchrun_option(*names: str, **settings: Any) -> Any:
    """Return an option that, like torchrun's, may also be given by its variable, PET_NNODES say."""
    variable = "PET_" + names[0].removeprefix("--").upper().replace("-", "_")
    return typer.Option(*names, envvar=variable, show_envvar=False, **settings)


@dataclass(frozen=True)
class GroupFlags:
    """The flags as they were given; None is a flag that was not given."""

    device: Annotated[
        _Text,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="The devices that ranks run on: auto, all, cpu, cuda:1, 0,2, GPU-8932f937 "
            f"(default: the environment's {DEVICE_VARIABLE}, else auto).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    processes_per_node: Annotated[
        _Text,
        torchrun_option(
            "--nproc-per-node",
            metavar="N|gpu|cpu|auto",
            help="Ranks (worker processes) on this node: a number; gpu: one for each GPU; cpu: one "
            "for each core; auto: gpu if there is one, else cpu (default: one for each device).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    processes_per_device: Annotated[
        _Count,
        typer.Option(
            "--nproc-per-device",
            metavar="N",
            min=1,
            help="Ranks on each device; instead of --nproc-per-node (default: 1).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    nodes: Annotated[
        _Text,
        torchrun_option(
            "--nnodes",
            metavar="N|MIN:MAX",
            help="How many nodes, or the fewest and the most (default: 1).",
            rich_help_panel=_NODES,
        ),
    ] = None
    node_rank: Annotated[
        _Count,
        torchrun_option(
            "--node-rank",
            metavar="N",
            min=0,
            help="The rank of this node, from 0: its GROUP_RANK (default: the next that is free).",
            rich_help_panel=_NODES,
        ),
    ] = None
    standalone: Annotated[
        _Switch,
        torchrun_option(
            "--standalone",
            help="One node: ignore --rdzv-endpoint, --master-addr and whatever else says where "
            "nodes meet.",
            rich_help_panel=_NODES,
        ),
    ] = None
    master_address: Annotated[
        _Text,
        torchrun_option(
            "--master-addr",
            metavar="HOST",
            help="The address of the node where several nodes meet (default: 127.0.0.1).",
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
            help="The port on --master-addr (default: 29500). With one node: the ranks' "
            "MASTER_PORT, if it is free.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_backend: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-backend",
            metavar="c10d|static",
            help="How nodes meet (rendezvous). Both do the same here, but c10d ignores "
            "--node-rank.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_endpoint: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-endpoint",
            metavar="HOST[:PORT]",
            help="Where several nodes meet, the same on each (default port: 29400). With one "
            "node, localhost:0 is any free port.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_id: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-id",
            metavar="NAME",
            help="The job's id, the same on each node: nodes of other jobs at the same endpoint "
            "stay apart.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_conf: Annotated[
        _Text,
        torchrun_option(
            "--rdzv-conf",
            metavar="KEY=VALUE,…",
            help="Settings of the rendezvous: join_timeout and timeout, in seconds, do what "
            "--rdzv-timeout does; torchrun's other keys have no effect.",
            rich_help_panel=_NODES,
        ),
    ] = None
    rdzv_timeout_seconds: Annotated[
        _Number,
        typer.Option(
            "--rdzv-timeout",
            metavar="SECONDS",
            help="How long a node waits for the others to come (default: 600).",
            rich_help_panel=_NODES,
        ),
    ] = None
    max_restarts: Annotated[
        _Count,
        torchrun_option(
            "--max-restarts",
            metavar="N",
            min=0,
            help="How often all ranks are started again after one has failed (default: 0).",
            rich_help_panel=_RANKS,
        ),
    ] = None
    timeout_seconds: Annotated[
        _Number,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long a rank waits for the others in a collective, unless the script gives "
            "init_process_group a timeout.",
            rich_help_panel=_RANKS,
        ),
    ] = None
    local_address: Annotated[
        _Text,
        torchrun_option(
            "--local-addr",
            metavar="HOST",
            help="The address by which other nodes reach this one (default: that of the network "
            "that leads to the meeting place).",
            rich_help_panel=_NODES,
        ),
    ] = None
    log_dir: Annotated[
        _Folder,
        torchrun_option(
            "--log-dir",
            metavar="FOLDER",
            parser=_folder,
            help="The folder in which each rank's stdout and stderr are kept.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    redirects: Annotated[
        _Text,
        torchrun_option(
            "--redirects",
            "-r",
            metavar="0-3|RANK:0-3,…",
            help="The streams that go to the log files and not to the console: 0 neither, 1 "
            "stdout, 2 stderr, 3 both; for all ranks, or by local rank.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    tee: Annotated[
        _Text,
        torchrun_option(
            "--tee",
            "-t",
            metavar="0-3|RANK:0-3,…",
            help="The streams that go to the log files and to the console too, as for "
            "--redirects (default: all that are not redirected).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    local_ranks_filter: Annotated[
        _Text,
        torchrun_option(
            "--local-ranks-filter",
            metavar="RANK,…",
            help="Show the output of these local ranks only (default: of all).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None
    role: Annotated[
        _Text,
        torchrun_option(
            "--role",
            metavar="NAME",
            help="What the ranks find in ROLE_NAME; it has no other effect.",
            rich_help_panel=_RANKS,
        ),
    ] = None
    monitor_interval_seconds: Annotated[
        _Number,
        torchrun_option(
            "--monitor-interval",
            metavar="SECONDS",
            help="No effect: the ranks are looked at every 0.1 s.",
            rich_help_panel=_WITHOUT_EFFECT,
        ),
    ] = None
    start_method: Annotated[
        _Text,
        torchrun_option(
            "--start-method",
            metavar="METHOD",
            help="spawn, fork or forkserver: no effect, as with torchrun, for ranks are scripts.",
            rich_help_panel=_WITHOUT_EFFECT,
        ),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, by the names here."""
        return {name: value for name, value in vars(self).items() if value is not None}


def with_group_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command of typer these flags; it finds them in its argument `flags`."""
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
    with_flags.__annotations__ = {}  # typer takes the signature's
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_flags


def _unwrapped(text: str | None) -> str | None:
    """Return a docstring with each paragraph on one line, for typer breaks no other line again."""
    if text is None:
        return None
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
