"""The state of one model in one process."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from ...accumulation import Accumulation
from ...losses.checked_means import CheckedCalls
from ...parts.divided_dimension import Answer
from ...shares.measure import StepClock
from .replicas import ReplicaSet
from .side_by_side import SideBySide


@dataclass(eq=False)
class Run:
    """The state of one model in one process; a copy of the model has its own."""

    replicas: ReplicaSet  # the copies of the module on the other devices
    side_by_side: SideBySide  # calls the replicas
    accumulation: Accumulation | None  # if the model was spread with `accumulate`
    # Which dimension of each output has the samples, known from earlier calls.
    known_dimensions: dict[Hashable, Answer] = field(default_factory=dict)
    checked: CheckedCalls = field(default_factory=CheckedCalls)
    clock: StepClock | None = None  # times the current step, if shares are being measured
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while replicas compute
    asked: threading.local = field(default_factory=threading.local)  # options for `forward`
