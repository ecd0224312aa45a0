"""What `nvidia-smi` says instead of an answer."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - of a question, and no error of ours
    """Printed on standard output, as nvidia-smi does; the command ends with `status`."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
