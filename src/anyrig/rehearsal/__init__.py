"""An unchanged script on GPUs that are not there."""

from .program import Program
from .rehearsal import Rehearsal

__all__ = ["Program", "Rehearsal"]
