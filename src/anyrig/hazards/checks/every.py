"""All checks."""

from __future__ import annotations

from ..check import Check, Report
from ..tensor_numbers import TensorNumbers
from .accumulated import AccumulatedCheck
from .cuts import Cuts
from .missing_gradients import MissingGradientsCheck
from .new_parameters import NewParameters
from .rebuilt import RebuiltCheck
from .replaced import ReplacedCheck
from .scaler import ScalerCheck
from .training_mode import TrainingModeCheck
from .unowned import UnownedCheck


def every_check(report: Report, numbers: TensorNumbers) -> list[Check]:
    """Return one instance of each check, in the order in which they are called for an event."""
    cuts, made = Cuts(numbers), NewParameters(numbers)
    replaced = ReplacedCheck(report, numbers, made)
    return [
        cuts,
        made,
        replaced,
        MissingGradientsCheck(report, numbers, cuts, made, replaced),
        UnownedCheck(report, numbers, replaced),
        RebuiltCheck(report, numbers),
        AccumulatedCheck(report, numbers),
        ScalerCheck(report),
        TrainingModeCheck(report),
    ]
