"""The replicas of one model in one process."""

from __future__ import annotations

from dataclasses import dataclass

from ...shares.measure import StepClock
from .replicas import ReplicaSet
from .side_by_side import SideBySide


@dataclass(eq=False)
class Run:
    """The replicas of one model in one process; a copy of the model has its own."""

    replicas: ReplicaSet  # the copies of the module on the other devices
    side_by_side: SideBySide  # calls the replicas
    clock: StepClock | None = None  # times the current step, if shares are being measured
