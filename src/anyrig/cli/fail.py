"""`anyrig rehearse fail`: let a rank fail on purpose, and report how the program goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .flag_errors import refused_as
from .group_flags import GroupFlags
from .rehearsal_flags import QUIET, RIG, SCRIPT, RehearsalFlags, read_rig
from .report_flags import ReportFlags
from .virtual_ranks import plan_ranks, run_ranks
from .with_flags import with_flags

if TYPE_CHECKING:
    from ..rehearsal.failing.fault import Fault

FAULT = "--fault"


@with_flags
def fail(
    context: typer.Context,
    *,
    script: SCRIPT,
    rig: RIG = None,
    fault: Annotated[
        str,
        typer.Option(
            FAULT,
            metavar="rank=N,step=N[,kill|slow=X|link]",
            help="Kill this rank in this step, slow its GPU down by a factor, or cut its "
            "connections.",
        ),
    ],
    quiet: QUIET = False,
    files: ReportFlags,
    rehearsed: RehearsalFlags,
    flags: GroupFlags,
) -> None:
    """Rehearse a script, let one of its ranks fail on purpose, and report how it goes on.

    The script runs as under `anyrig run`: one rank for each GPU of the rig. The words after SCRIPT
    are its arguments, and the other flags are those of `anyrig rehearse`.
    """
    whole = read_rig(rig)
    ranks = plan_ranks(whole, flags)
    injected = read_fault(fault, ranks[1].processes)
    hazards = rehearsed.hazards
    reporting = files.reporting(quiet=quiet, steps=rehearsed.steps)
    program = rehearsed.program(script, context.args, as_ranks=True)
    rehearsal = rehearsed.rehearsal(program, whole, reporting)
    raise typer.Exit(run_ranks(rehearsal, *ranks, flags, hazards, injected))


def read_fault(text: str, ranks: int) -> Fault:
    """Return the failure that ``--fault`` names, after checking that there is such a rank.

    Raises:
        typer.BadParameter: the text does not describe a failure, or the rehearsal has no such rank.
    """
    from ..rehearsal.failing.cut_link import can_cut_links
    from ..rehearsal.failing.fault import LINK, Fault

    with refused_as(FAULT):
        fault = Fault.parse(text)
    if ranks == 1:
        raise typer.BadParameter(
            "it needs several ranks, and this rehearsal has one; name a rig of several GPUs, or "
            "add --nproc-per-node",
            param_hint=FAULT,
        )
    if fault.rank >= ranks:
        raise typer.BadParameter(
            f"there is no rank {fault.rank}; the ranks are 0 to {ranks - 1}", param_hint=FAULT
        )
    if fault.kind == LINK and not can_cut_links():
        raise typer.BadParameter(
            "link needs Linux, whose kernel can drop the data of a connection; use kill or slow",
            param_hint=FAULT,
        )
    return fault
