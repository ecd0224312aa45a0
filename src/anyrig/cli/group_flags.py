"""The flags of `anyrig run` that say which ranks a group has; other commands take them too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Optional, get_type_hints

import typer

from ..devices.arguments import DEVICE_HELP

# What makes the `processes` of RunOptions, with the devices that there are.
_RANKS_OF_A_NODE = ("device", "processes_per_device")


def _folder(text: str) -> Path:
    if not text:  # to pathlib the current folder
        raise ValueError("it names no folder")
    return Path(text)


@dataclass(frozen=True)
class GroupFlags:
    """What was given of the flags; None is a flag that was not."""

    # typer reads these types at run time, on Python 3.10 too, so they are Optional.
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP),
    ] = None
    processes_per_device: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--nproc-per-device", min=1, help="Ranks on each device (default: 1)."),
    ] = None
    nodes: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--nnodes", metavar="N|MIN:MAX", help="How many machines (default: 1)."),
    ] = None
    rdzv_endpoint: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--rdzv-endpoint", metavar="HOST:PORT", help="Where machines meet; on all alike."
        ),
    ] = None
    rdzv_id: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--rdzv-id", help="Tells this job from another at the same place."),
    ] = None
    rdzv_timeout_seconds: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--rdzv-timeout", metavar="SECONDS", help="How long to wait there (default: 600)."
        ),
    ] = None
    max_restarts: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--max-restarts", min=0, help="Start again after a failure, so often."),
    ] = None
    timeout_seconds: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long a rank waits for the others in a collective, unless the script says.",
        ),
    ] = None
    local_address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--local-addr", help="This machine's address as the others see it."),
    ] = None
    log_folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--log-dir", metavar="FOLDER", parser=_folder, help="Keep each rank's output here."
        ),
    ] = None

    @property
    def ranks_per_device(self) -> int:
        """How many ranks each device has."""
        return 1 if self.processes_per_device is None else self.processes_per_device

    @property
    def given(self) -> dict[str, Any]:
        """The flags that were given, by the names here."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """What was given for `RunOptions`, which has the rest by default."""
        return {name: self.given[name] for name in self.given if name not in _RANKS_OF_A_NODE}


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

    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    with_flags.__annotations__ = {}  # typer takes the signature's
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_flags
