"""Write the page of a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...memory.atomic_file import write_atomically
from .document import format_page


def write_page(facts: Mapping[str, Any], path: Path) -> None:
    """Write the facts of a rehearsal (`docs/rehearsal_page.md`) as one HTML page.

    An existing file is replaced at once, when the page is complete.

    Raises:
        ValueError: the facts have another format or version.
        OSError: the file cannot be written.
    """
    # Names of files may hold bytes that are not text.
    write_atomically(path, format_page(facts).encode("utf-8", "backslashreplace"))
