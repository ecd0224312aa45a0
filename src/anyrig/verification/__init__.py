"""Whether a program trains as on one device, and as its author believes; if not, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .hazards.hazard import Hazard as Hazard
    from .hazards.hazard import HazardKind as HazardKind
    from .hazards.hazard import HazardWarning as HazardWarning
    from .hazards.watch import Hazards as Hazards
    from .hazards.watch import watch_hazards as watch_hazards
    from .two_runs import verify as verify
    from .verdict import Verdict as Verdict

_MODULE_OF_NAME = {
    "Hazard": ".hazards.hazard",
    "HazardKind": ".hazards.hazard",
    "HazardWarning": ".hazards.hazard",
    "Hazards": ".hazards.watch",
    "Verdict": ".verdict",
    "verify": ".two_runs",
    "watch_hazards": ".hazards.watch",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
