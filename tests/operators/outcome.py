"""What came of one entry in one variant."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Outcome:
    """What came of one entry in one variant.

    Attributes:
        status: ``passed``, ``failed``, or ``absent`` where the variant does not apply.
        samples: calls compared.
        identical: those whose numbers agree bit for bit, gradients included.
        refused: calls that CPU and virtual device refuse with the same exception class.
        widened: calls compared with a wider dtype on the CPU, which lacks the kernel.
        backward: calls whose gradients were compared.
        random: the results are random numbers; everything but the numbers was compared.
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
        """Keep the first failure."""
        self.status = "failed"
        if self.message is None:
            self.message = message

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def describe(error: Exception) -> str:
    """One line of an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
