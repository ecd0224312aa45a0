"""The exception for a command line that `nvidia-smi` rejects."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - a regular outcome of the command
    """A message that the command prints on standard output before it exits with `status`."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
