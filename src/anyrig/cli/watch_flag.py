"""The flag `--watch` of the commands that run a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from ..hazards.program_watch import HazardOptions

HAZARDS, MEMORY, PROFILE = "hazards", "memory", "profile"
_FAIL, _SUMS = "fail", "sums"

WATCH = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads it on Python 3.10 too
    typer.Option(
        "--watch",
        metavar="hazards|memory|profile",
        help="hazards: print the mistakes that raise no error, such as writes to values that "
        "backward saved; hazards,fail: also end with exit code 1 if there are any; hazards,sums: "
        "watch saved values on the CPU and on real GPUs too, by slow sums of their bytes. memory: "
        "if the script runs out of memory, name the lines that filled the device; this slows every "
        "operator down. profile: profile a few steps, and print a summary, as --report, --trace "
        "and --json do. Repeat the flag to watch several. A rehearsal always does "
        "what memory and profile ask for.",
    ),
]


@dataclass(frozen=True)
class Watched:
    """What to watch a program for.

    Attributes:
        hazards: how to watch for hazards; None not to.
        memory: whether to track the lines that allocate memory.
        profile: whether to profile a few steps.
    """

    hazards: HazardOptions | None
    memory: bool
    profile: bool


def read_watched(texts: list[str] | None) -> Watched:
    """Return what the values of ``--watch`` ask for.

    Raises:
        typer.BadParameter: a value has an unknown word.
    """
    from ..hazards.program_watch import HazardOptions

    found: set[str] = set()
    for text in texts or ():
        kind, *options = text.split(",")
        known = {_FAIL, _SUMS} if kind == HAZARDS else set()
        if kind not in (HAZARDS, MEMORY, PROFILE) or not known.issuperset(options):
            raise typer.BadParameter(
                f"{text[:60]!r} cannot be watched; write hazards, memory or profile, or with "
                "options hazards,fail or hazards,sums, and repeat the flag to watch several",
                param_hint="--watch",
            )
        found |= {kind, *options}
    hazards = HazardOptions(_FAIL in found, _SUMS in found) if HAZARDS in found else None
    return Watched(hazards, MEMORY in found, PROFILE in found)
