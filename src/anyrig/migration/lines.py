"""The lines of a text, and which of them holds a character."""

from __future__ import annotations

from bisect import bisect_right


class Lines:
    """Where each line of a text begins.

    A line ends with a line feed, a carriage return, or both.
    """

    def __init__(self, text: str) -> None:
        self.starts = [0]
        position = 0
        while True:
            feed, carriage = text.find("\n", position), text.find("\r", position)
            if feed < 0 and carriage < 0:
                return
            if carriage >= 0 and (feed < 0 or carriage < feed):
                position = carriage + (2 if feed == carriage + 1 else 1)
            else:
                position = feed + 1
            self.starts.append(position)

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of a place in the text, counted from 1."""
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1
