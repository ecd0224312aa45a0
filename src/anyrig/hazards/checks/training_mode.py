"""A model that is evaluated in training mode: dropout and batch norm make its outputs wrong.

Training mode without gradients is right in many places: for a teacher, for the fakes of a
generator, within a checkpoint, to measure the statistics of batch norm. What counts is a model that
an optimizer trains, called as a whole without gradients, twice without a backward pass in between.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer

from ...observe.census import parameters_of
from ...observe.events import Events
from ...observe.hooks import Observer
from ..check import Check, Report
from ..hazard import Hazard, HazardKind, Place
from ..lines import place_here

_CALLS_BEFORE_REPORT = 2
# Parts of PyTorch that run models in training mode without gradients.
_EXEMPT = tuple(
    str(Path(torch.__file__).parent / name)
    for name in ("optim/swa_utils.py", "utils/checkpoint.py")
)


class TrainingModeCheck(Check):
    """Counts the calls of models in training mode without gradients."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._suspects: weakref.WeakKeyDictionary[nn.Module, Hazard] = weakref.WeakKeyDictionary()
        self._observer: Observer | None = None
        self._trained: set[int] = set()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def layer_of_training(self, options: Mapping[str, Any]) -> None:
        """Find the model that runs dropout or batch norm, and count its calls from now on."""
        if options.get("momentum", 0) is None:
            return  # batch norm averages over all batches, which only a measurement wants
        root = find_outermost_module(sys._getframe(1))
        if root is None or root in self._calls:
            return
        self._calls[root] = 1
        if self._observer is None:  # not on `root`: a pipeline refuses modules with new hooks
            self._observer = Observer(Events(module_called=self._count_call))
            self._observer.start()

    def before_backward(self, roots: Sequence[Tensor], place: Place) -> None:
        """Restart the count."""
        for model in list(self._calls):
            self._calls[model] = 0

    def before_step(self, optimizer: Optimizer, place: Place) -> None:
        """Remember the parameters that are trained."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._trained |= {id(parameter) for parameter in parameters_of(optimizer)}
        for model, hazard in list(self._suspects.items()):
            self._report_if_trained(model, hazard)

    def stop(self) -> None:
        """Follow the calls of modules no longer."""
        if self._observer is not None:
            self._observer.stop()

    def _count_call(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        if is_compiling() or model not in self._calls:
            return
        if torch.is_grad_enabled() or not model.training:
            return
        self._calls[model] = self._calls.get(model, 0) + 1
        if self._calls[model] == _CALLS_BEFORE_REPORT and model not in self._suspects:
            hazard = _describe(model, place_here("evaluated"))
            self._suspects[model] = hazard
            self._report_if_trained(model, hazard)

    def _report_if_trained(self, model: nn.Module, hazard: Hazard) -> None:
        if any(id(parameter) in self._trained for parameter in model.parameters()):
            self._report(hazard)


def find_outermost_module(frame: FrameType | None) -> nn.Module | None:
    """Return the outermost module whose call is running; None if a part of PyTorch runs it."""
    found = None
    code = nn.Module.__call__.__code__
    while frame is not None:
        if frame.f_code.co_filename.startswith(_EXEMPT):
            return None
        if frame.f_code is code:
            found = frame.f_locals["self"]
        frame = frame.f_back
    return found


def _describe(model: nn.Module, place: Place) -> Hazard:
    what = (
        f"{type(model).__name__} was called without gradients several times in a row, but in "
        "training mode: dropout drops values, and batch norm follows the data of the evaluation"
    )
    remedy = "call model.eval() before the evaluation, and model.train() after it"
    return Hazard(HazardKind.TRAINING_MODE, what, (place,), remedy)
