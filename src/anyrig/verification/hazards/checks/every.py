"""All checks."""

from __future__ import annotations

from ..check import Check, Report
from .accumulated import AccumulatedCheck
from .cuts import Cuts
from .missing_gradients import MissingGradientsCheck
from .scaler import ScalerCheck
from .training_mode import TrainingModeCheck
from .unowned import UnownedCheck


def every_check(report: Report) -> list[Check]:
    """Return one instance of each check, in the order in which they hear of an event."""
    cuts = Cuts()
    return [
        cuts,
        MissingGradientsCheck(report, cuts),
        UnownedCheck(report),
        AccumulatedCheck(report),
        ScalerCheck(report),
        TrainingModeCheck(report),
    ]
