"""`anyrig doctor`: find what would keep a group of ranks from starting."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from .chosen_device import chosen_device, named_in_errors
from .group_flags import GroupFlags
from .torchrun_flags import count_ranks, run_options
from .with_flags import with_flags

_MARKS = {"good": "[green]good[/]", "doubtful": "[yellow]doubtful[/]", "bad": "[red]bad[/]"}


@with_flags
def doctor(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as one JSON object.")
    ] = False,
    flags: GroupFlags,
) -> None:
    """Check whether `anyrig run` with the same flags could start its ranks on this node.

    With several nodes, run this command on all nodes at the same time. The exit status is 1 if a
    finding is bad. The last lines list the private names of PyTorch that anyrig uses: what this
    version of PyTorch does not have, and what breaks without it.
    """
    # A finding reports a failed connection; silence what PyTorch's store logs about it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from rich.console import Console
    from rich.markup import escape

    from ..devices.rig import Rig
    from ..processes.preflight import preflight
    from ..processes.preflight.finding import Finding, Level
    from .torch_names_table import names_as_json, names_table

    source, chosen = chosen_device(flags.device)
    with named_in_errors(source):
        rig = Rig.parse("auto" if chosen is None else chosen)
    options = run_options(flags, count_ranks(flags, tuple(rig)), keeps_endpoint=True)
    console = Console(highlight=False)
    found: list[Finding] = []
    for finding in preflight.examine(rig, options):
        found.append(finding)
        if as_json:
            continue
        where = "" if finding.host is None else f" (seen from {finding.host})"
        mark = _MARKS[finding.level.value]
        console.print(f"{mark:<8} {finding.check}{where}: {escape(finding.text)}", soft_wrap=True)
        if finding.advice is not None:
            console.print(f"         → {escape(finding.advice)}", soft_wrap=True)
    if as_json:
        findings = [asdict(finding) for finding in found]
        typer.echo(json.dumps({"findings": findings, "pytorch": names_as_json()}, indent=2))
    else:
        console.print(names_table(console.width), soft_wrap=True)
    raise typer.Exit(int(any(finding.level is Level.BAD for finding in found)))
