"""Running an unchanged script on virtual GPUs, and what that finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .watching import Report as Report
    from .watching import watch as watch

_MODULE_OF_NAME = {"Report": ".watching", "watch": ".watching"}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
