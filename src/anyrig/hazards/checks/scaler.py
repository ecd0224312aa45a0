"""A gradient scaler that never lets its optimizer step."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place

# The first scale, 65536, is halved with each skipped step; a sound training skips about five.
_SKIPS_BEFORE_REPORT = 12
# A program may step once without its scaler, to make the optimizer's state.
_DIRECT_STEPS_BEFORE_REPORT = 2


@dataclass
class _Scaler:
    skips: int = 0
    has_stepped: bool = False
    is_unscaled: bool = False
    scaled: Place | None = None
    backwards: int = 0
    direct_steps: int = 0
    is_reported: bool = False


class ScalerCheck(Check):
    """Counts the steps that each scaler skips, and the steps that bypass it."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._scalers: weakref.WeakKeyDictionary[Any, _Scaler] = weakref.WeakKeyDictionary()
        # The scaler whose step is running, and whether the optimizer has stepped in it.
        self._asked: Any = None
        self._stepped = False
        self._scaler_step = self._step = Place("step", None)

    def scaled(self, scaler: Any, place: Place) -> None:
        """Remember that the scaler is in use."""
        self._scalers.setdefault(scaler, _Scaler()).scaled = place

    def unscaled_by_hand(self, scaler: Any) -> None:
        """Remember that the program may unscale gradients itself."""
        self._scalers.setdefault(scaler, _Scaler()).is_unscaled = True

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Count the backward passes of the scalers that have scaled."""
        for state in self._scalers.values():
            state.backwards += state.scaled is not None

    def before_scaler_step(self, scaler: Any, optimizer: Optimizer, place: Place) -> None:
        """Begin to watch whether the optimizer steps."""
        state = self._scalers.setdefault(scaler, _Scaler())
        state.has_stepped = True
        self._asked, self._stepped, self._scaler_step = scaler, False, place

    def after_step(self, optimizer: Optimizer) -> None:
        """Note a step that the scaler allows, or one that bypasses every scaler."""
        if self._asked is not None:
            self._stepped = True
            return
        for state in self._scalers.values():
            if state.backwards and not state.has_stepped and not state.is_unscaled:
                state.direct_steps += 1
                if state.direct_steps == _DIRECT_STEPS_BEFORE_REPORT and not state.is_reported:
                    state.is_reported = True
                    assert state.scaled is not None
                    self._report(_describe_unasked(optimizer, state.scaled, self._step))

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Remember the line of the step."""
        self._step = place

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """Count a skipped step."""
        state = self._scalers[scaler]
        self._asked = None
        state.skips = 0 if self._stepped else state.skips + 1
        if state.skips == _SKIPS_BEFORE_REPORT and not state.is_reported:
            state.is_reported = True
            self._report(_describe_skips(optimizer, state, self._scaler_step))


def _describe_skips(optimizer: Optimizer, state: _Scaler, place: Place) -> Hazard:
    what = (
        f"the scaler skipped {state.skips} steps of {type(optimizer).__name__} in a row, because "
        "each had gradients that are infinite or not a number"
    )
    remedy = (
        "find the operation with torch.autograd.set_detect_anomaly(True); clip or normalise before "
        "it, or use bfloat16, which needs no scaler"
    )
    places = (place,) if state.scaled is None else (state.scaled, place)
    return Hazard(HazardKind.UNSTEPPED_SCALER, what, places, remedy)


def _describe_unasked(optimizer: Optimizer, scaled: Place, step: Place) -> Hazard:
    what = (
        f"a scaler scales the loss, but {type(optimizer).__name__} steps without it, so the "
        "gradients keep the scale, and infinite ones are not skipped"
    )
    remedy = "write scaler.step(optimizer) and scaler.update() instead of optimizer.step()"
    return Hazard(HazardKind.UNSTEPPED_SCALER, what, (scaled, step), remedy)
