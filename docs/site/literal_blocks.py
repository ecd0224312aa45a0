"""Docstrings mark a literal block by `::`, as reStructuredText does; Markdown needs no mark."""

from __future__ import annotations

import re
from typing import Any

import griffe

ALONE = re.compile(r"^[ \t]*::[ \t]*$", re.MULTILINE)
AT_END = re.compile(r"::[ \t]*$", re.MULTILINE)


class LiteralBlocks(griffe.Extension):
    """Take the marks out of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object, if it has one."""
        if obj.docstring:
            obj.docstring.value = AT_END.sub(":", ALONE.sub("", obj.docstring.value))
