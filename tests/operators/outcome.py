"""The outcome of one entry in one variant."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Outcome:
    """The outcome of one entry in one variant.

    Attributes:
        status: ``passed``, ``failed``, or ``absent`` where the variant does not apply.
        samples: calls compared.
        identical: compared calls whose results and gradients agree bit for bit.
        refused: calls for which both devices raise the same exception class.
        widened: calls compared in a wider dtype because the CPU has no kernel for theirs.
        backward: calls whose gradients were compared.
        random: the results are random numbers, whose values were not compared.
        message: of the first failure.
    """

    entry: str
    variant: str
    status: str = "passed"
    samples: int = 0
    identical: int = 0
    refused: int = 0
    widened: int = 0
    backward: int = 0
    random: bool = False
    seconds: float = 0.0
    message: str | None = None

    def fail(self, message: str) -> None:
        """Mark the entry as failed and keep the message of its first failure."""
        self.status = "failed"
        if self.message is None:
            self.message = message

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as a dictionary for JSON."""
        return asdict(self)


def describe(error: Exception) -> str:
    """Return the error's class and first line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
