"""`anyrig rehearse`: a script on GPUs that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def rehearse(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A Python script, or with -m a module.")],
    rig: Annotated[
        str,
        typer.Option(
            "--rig",
            metavar="RIG",
            help="The GPUs to pretend: 4xA100-80GB, A100-40GB+2xT4, 2x(8xH100-SXM) for nodes, or "
            "2x16GiB for plain cards.",
        ),
    ],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module.")] = False,
    shape_only: Annotated[
        bool,
        typer.Option("--shape-only", help="Compute nothing and hold no data; count every byte."),
    ] = False,
    assume_values: Annotated[
        bool,
        typer.Option(
            "--assume-values",
            help="With --shape-only, go on with constants where the script needs a value.",
        ),
    ] = False,
) -> None:
    """Run an unchanged script on virtual GPUs; what follows its name is its own.

    Its arguments, standard streams and exit code are its own too.
    """
    from ..rehearsal.program import Program
    from ..rehearsal.rehearsal import Rehearsal
    from ..virtual.rig import VirtualRig

    if not module and not Path(script).exists():
        raise typer.BadParameter(f"there is no script {script!r}", param_hint="SCRIPT")
    if assume_values and not shape_only:
        raise typer.BadParameter(
            "only a rehearsal with --shape-only lacks values", param_hint="--assume-values"
        )
    rehearsal = Rehearsal(
        Program(script, tuple(context.args), is_module=module),
        VirtualRig.parse(rig),
        shape_only=shape_only,
        assume_values=assume_values,
    )
    raise typer.Exit(rehearsal.run())
