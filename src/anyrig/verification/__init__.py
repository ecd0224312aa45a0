"""Whether a program trains as on one device; if not, why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .two_runs import verify as verify
    from .verdict import Verdict as Verdict

_MODULE_OF_NAME = {
    "Verdict": ".verdict",
    "verify": ".two_runs",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
