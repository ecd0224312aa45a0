"""The values that autograd saves on virtual GPUs, whose kernels see every write to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .build import load_extension
from .installed import installation

# A file and a line of the program.
Line = tuple[str, int]
# Called with the tensor, the lines that saved and wrote it, the operator that wrote it (None if the
# tensor was given other memory), and the node of the backward pass that uses it.
Report = Callable[[Tensor, Line | None, Line | None, str | None, str | None], None]


class SavedValues:
    """Reports each value that is used in a backward pass and was overwritten since it was saved."""

    def watch(self, libraries: Sequence[str], report: Report) -> None:
        """Watch the values that are saved from now on.

        Args:
            libraries: prefixes of the names of files whose lines are not reported.
            report: called in the middle of a backward pass.
        """
        load_extension().watch_saved_values(list(libraries), nn.Module.__call__.__code__, report)

    def note_assigned(self, tensor: Tensor) -> None:
        """Let the saved values of a tensor follow it to its new memory, as PyTorch does."""
        load_extension().note_assigned(tensor)

    def stop(self) -> None:
        """Watch no more values."""
        load_extension().unwatch_saved_values()


def find_saved_values() -> SavedValues | None:
    """Return a watch on saved values; None without virtual GPUs, whose kernels see the writes."""
    return None if installation() is None else SavedValues()
