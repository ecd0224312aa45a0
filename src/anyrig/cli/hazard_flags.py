"""The flags of `anyrig run` and `anyrig rehearse` that watch a program for hazards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..verification.hazards.program_watch import HazardOptions

HAZARDS = Annotated[
    bool,
    typer.Option(
        "--hazards",
        help="Find mistakes that raise no error, such as writes to values that backward saved, and "
        "print them at the end.",
    ),
]

FAIL_ON_HAZARDS = Annotated[
    bool,
    typer.Option(
        "--fail-on-hazards", help="With --hazards: end with exit code 1 if there are any."
    ),
]

HAZARD_SUMS = Annotated[
    bool,
    typer.Option(
        "--hazard-sums",
        help="With --hazards: watch saved values on the CPU and on real GPUs too, by sums of their "
        "bytes, which is slow.",
    ),
]


def hazard_options(hazards: bool, fails: bool, sums: bool, is_python: bool) -> HazardOptions | None:
    """Return how to watch the program; None to watch for no hazards.

    Raises:
        typer.BadParameter: the flags contradict each other.
    """
    from ..verification.hazards.program_watch import HazardOptions

    if hazards and not is_python:
        raise typer.BadParameter(
            "it watches a Python script, and --no-python runs another program; drop one of them",
            param_hint="--hazards",
        )
    if not hazards and (fails or sums):
        raise typer.BadParameter(
            "it says how to watch for hazards; add --hazards",
            param_hint="--fail-on-hazards" if fails else "--hazard-sums",
        )
    return HazardOptions(fails, sums) if hazards else None
