"""`Measurement`: what was measured of a program on real devices, and what was not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """What was measured.

    Attributes:
        steps_taken: the steps of the program, of which a few were profiled.
        notes: what the report leaves out, and why: a sentence each.
    """

    steps_taken: int
    notes: tuple[str, ...]
