"""State that survives: model, optimizer, loader and random numbers, on any number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..late_names import load_late

if TYPE_CHECKING:
    from .background_saver import BackgroundSaver as BackgroundSaver
    from .foreign.read import read_foreign as read_foreign
    from .foreign.recognise import recognise as recognise
    from .foreign.state import ForeignState as ForeignState
    from .foreign.state import Format as Format
    from .foreign.state import Recognition as Recognition
    from .manifest import FileFact as FileFact
    from .manifest import Manifest as Manifest
    from .manifest import read_manifest as read_manifest
    from .mismatch import KeyMismatch as KeyMismatch
    from .mismatch import check_names as check_names
    from .mismatch import find_mismatch as find_mismatch
    from .series import Checkpoint as Checkpoint
    from .series import Series as Series
    from .verify import Finding as Finding
    from .verify import verify_folder as verify_folder

_MODULE_OF_NAME = {
    "BackgroundSaver": ".background_saver",
    "Checkpoint": ".series",
    "FileFact": ".manifest",
    "Finding": ".verify",
    "ForeignState": ".foreign.state",
    "Format": ".foreign.state",
    "KeyMismatch": ".mismatch",
    "Manifest": ".manifest",
    "Recognition": ".foreign.state",
    "Series": ".series",
    "check_names": ".mismatch",
    "find_mismatch": ".mismatch",
    "read_foreign": ".foreign.read",
    "read_manifest": ".manifest",
    "recognise": ".foreign.recognise",
    "verify_folder": ".verify",
}

__all__ = [*_MODULE_OF_NAME]
__getattr__, __dir__ = load_late(__name__, _MODULE_OF_NAME)
