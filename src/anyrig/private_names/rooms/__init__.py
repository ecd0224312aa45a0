"""The private names that each room uses. One entry per name, sorted within its room."""

from __future__ import annotations

from ..name import PrivateName
from .checkpoint import CHECKPOINT
from .devices import DEVICES
from .hazards import HAZARDS
from .headers import HEADERS
from .memory import MEMORY
from .observe import OBSERVE
from .parallel import PARALLEL
from .processes import PROCESSES
from .rehearsal import REHEARSAL
from .verification import VERIFICATION
from .virtual import VIRTUAL

ROOMS: dict[str, tuple[PrivateName, ...]] = {
    "checkpoint": CHECKPOINT,
    "devices": DEVICES,
    "hazards": HAZARDS,
    "memory": MEMORY,
    "observe": OBSERVE,
    "parallel": PARALLEL,
    "processes": PROCESSES,
    "rehearsal": REHEARSAL,
    "verification": VERIFICATION,
    "virtual": (*VIRTUAL, *HEADERS),
}
