"""Mistakes that raise no error and change what a program learns, found while it runs.

::

    watch.py ── watch_hazards: starts and stops all that follows
      ├─ saved values ──── kernel_values.py    virtual GPUs: the kernels see every write
      │                    summed_values.py    other devices, if asked: sums of the bytes
      ├─ notifier.py ───── what the program does with PyTorch, as events
      ├─ tensor_numbers.py how checks remember parameters and gradients
      └─ checks/ ───────── one hazard per file: keeps what it needs of the events, and decides
                           in a function without effects
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .hazard import Hazard as Hazard
    from .hazard import HazardKind as HazardKind
    from .hazard import HazardWarning as HazardWarning
    from .watch import Hazards as Hazards
    from .watch import watch_hazards as watch_hazards

_MODULE_OF_NAME = {
    "Hazard": ".hazard",
    "HazardKind": ".hazard",
    "HazardWarning": ".hazard",
    "Hazards": ".watch",
    "watch_hazards": ".watch",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
