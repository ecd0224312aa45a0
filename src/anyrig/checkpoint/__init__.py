"""State that survives: model, optimizer, loader and random numbers, on any number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .background_saver import BackgroundSaver as BackgroundSaver
    from .manifest import FileFact as FileFact
    from .manifest import Manifest as Manifest
    from .manifest import read_manifest as read_manifest
    from .series import Checkpoint as Checkpoint
    from .series import Series as Series
    from .verify import Finding as Finding
    from .verify import verify_folder as verify_folder

_MODULE_OF_NAME = {
    "BackgroundSaver": ".background_saver",
    "Checkpoint": ".series",
    "FileFact": ".manifest",
    "Finding": ".verify",
    "Manifest": ".manifest",
    "Series": ".series",
    "read_manifest": ".manifest",
    "verify_folder": ".verify",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
