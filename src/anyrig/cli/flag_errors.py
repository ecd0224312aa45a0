"""The flag that an error is about: its value is refused, or it is the nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

# What an unknown flag means: the flags of other tools, and those that anyrig had once.
_MEANT = {
    "--cpu": ("--device cpu",),
    "--devices": ("--device", "--rig"),
    "--explain-oom": ("--watch memory",),
    "--fail-on-hazards": ("--watch hazards,fail",),
    "--gpus": ("--rig", "--device", "--nproc-per-node"),
    "--hazard-sums": ("--watch hazards,sums",),
    "--hazards": ("--watch hazards",),
    "--nproc": ("--nproc-per-node", "--nproc-per-device"),
    "--num-gpus": ("--rig", "--nproc-per-node"),
    "--num-machines": ("--nnodes",),
    "--num-processes": ("--nproc-per-node",),
    "--rdzv-timeout": ("--rdzv-conf timeout=SECONDS",),
    "--world-size": ("--ranks", "--nproc-per-node"),
}


@contextmanager
def refused_as(flag: str) -> Iterator[None]:
    """Name `flag` in the error if the block raises a `ReportError`."""
    from ..errors import ReportError

    try:
        yield
    except ReportError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


@contextmanager
def name_nearest_flag(context: Any) -> Iterator[None]:
    """Name the flags of the command that are nearest to an unknown one, in its error."""
    try:
        yield
    except Exception as error:  # no public name of typer's has the class of this error
        option = getattr(error, "option_name", None)
        if isinstance(option, str) and hasattr(error, "possibilities"):
            flags = [name for parameter in context.command.params for name in parameter.opts]
            near = nearest_flags(option, flags)
            error.message = f"No such option: {option}. Did you mean {' or '.join(near)}?"  # type: ignore[attr-defined]
            error.possibilities = None
        raise


def nearest_flags(option: str, flags: list[str]) -> list[str]:
    """Return what `option` is known to mean, else the flag that is most like it."""
    option = option.replace("_", "-")
    meant = [text for text in _MEANT.get(option, ()) if text.split()[0] in flags]
    long = [name for name in flags if name.startswith("--")]
    begun = [name for name in long if name.startswith(option)]
    near = difflib.get_close_matches(option, long, 1, cutoff=0.0)
    return meant or begun[:2] or near or ["--help"]
