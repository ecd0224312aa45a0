"""`anyrig doctor`: why it would not start, before it does not start."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated, Optional

import typer

from ..devices.arguments import DEVICE_HELP, DEVICE_VARIABLE

_MARKS = {"good": "[green]good[/]", "doubtful": "[yellow]doubtful[/]", "bad": "[red]bad[/]"}


def doctor(
    device: Annotated[
        Optional[str],  # noqa: UP045 - typer reads it at run time, on Python 3.10 too
        typer.Option("--device", metavar="DEVICE", help=DEVICE_HELP, show_default=False),
    ] = None,
    nproc_per_device: Annotated[
        int, typer.Option("--nproc-per-device", min=1, help="Ranks on each device.")
    ] = 1,
    nnodes: Annotated[int, typer.Option("--nnodes", min=1, help="How many machines.")] = 1,
    rdzv_endpoint: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the machines meet."),
    ] = None,
    local_address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--local-addr", help="This machine's address as the others see it."),
    ] = None,
    limit_seconds: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long each wait may take.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look whether a group of ranks could start here, with the flags of `anyrig run`.

    On several machines, run it on each of them at the same time. Ends with 1 if something is bad.
    """
    # What PyTorch's store logs of a connection that fails is said in one finding.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from ..devices.rig import Rig
    from ..parallel.preflight.finding import Finding, Level
    from ..parallel.preflight.preflight import Preflight

    rig = Rig.parse(device or os.environ.get(DEVICE_VARIABLE) or "auto")
    preflight = Preflight(
        rig, nproc_per_device, nnodes, rdzv_endpoint, local_address, limit_seconds
    )
    found: list[Finding] = []
    for finding in preflight.run():
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
    raise typer.Exit(int(any(finding.level is Level.BAD for finding in found)))


def _print(finding: object) -> None:
    from rich.console import Console
    from rich.markup import escape

    from ..parallel.preflight.finding import Finding

    assert isinstance(finding, Finding)
    console = Console(highlight=False)
    mark = _MARKS[finding.level.value]
    console.print(f"{mark:<8} {finding.check}: {escape(finding.text)}", soft_wrap=True)
    if finding.advice is not None:
        console.print(f"         → {escape(finding.advice)}", soft_wrap=True)
