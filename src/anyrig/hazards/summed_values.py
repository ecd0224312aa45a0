"""Saved values on the CPU and on real GPUs, compared by sums of their bytes.

::

    forward    pack ──── the tensor, its version and the sums of its bytes
    backward   unpack ── same version, other sums ──▶ the write comes from write_log.py (operators)
                                                      or numpy_writes.py (NumPy arrays)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..observe.hooks import Replacements
from .byte_sums import Sums, can_sum, sum_bytes
from .check import Check
from .hazard import Hazard, Place
from .lines import place_here
from .numpy_writes import NumpyWrites
from .overwritten import describe_overwritten, describe_rebound
from .write_log import WriteLog

# Nodes whose operators write to running statistics, which they save and do not use.
_UPDATES_STATISTICS = "BatchNorm"


@dataclass(eq=False)
class _Saved:
    """A tensor that autograd saved.

    Attributes:
        original: the tensor.
        tensor: the original if it is a leaf, else another tensor with the same memory and version
            counter: a node that held its own output would never be freed.
        number: the number of the last write before.
        assigned: the original with the memory that it was given, and the node that made it.
        assigned_at: the line that gave it other memory.
    """

    original: weakref.ref[Tensor]
    tensor: Tensor
    version: int
    address: int
    sums: Sums | None
    place: Place
    number: int
    assigned: tuple[Tensor, Any] | None = None
    assigned_at: Place | None = None


class SummedValues(Check):
    """Watches what autograd saves in this thread."""

    def __init__(self, report: Callable[[Hazard], None]) -> None:
        self._report = report
        self._log: Any = WriteLog()
        self._numpy = NumpyWrites(lambda address, place: self._log.add(address, place, "NumPy"))
        self._live: weakref.WeakSet[_Saved] = weakref.WeakSet()
        self._hooks: Any = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def start(self, replacements: Replacements) -> None:
        """Watch the values that are saved from now on."""
        self._numpy.start(replacements)
        self._hooks.__enter__()
        self._log.__enter__()

    def stop(self) -> None:
        """Watch no more values."""
        self._log.__exit__(None, None, None)
        self._hooks.__exit__(None, None, None)
        self._numpy.stop()

    def data_assigned(self, tensor: Tensor, place: Place) -> None:
        """Let the saved values of a tensor follow it to its new memory, as PyTorch does."""
        for saved in list(self._live):
            if saved.original() is tensor:
                saved.assigned_at = place
                if saved.tensor is not tensor:
                    saved.assigned = torch.detach(tensor), tensor.grad_fn

    def _pack(self, tensor: Tensor) -> Any:
        original = weakref.ref(tensor)
        kept = tensor if tensor.is_leaf else torch.detach(tensor)
        if not can_sum(tensor):
            return _Saved(original, kept, tensor._version, 0, None, Place("saved", None), 0)
        address = tensor.untyped_storage().data_ptr()
        sums = sum_bytes(tensor)
        place = place_here("saved")
        number = self._log.last_number
        saved = _Saved(original, kept, tensor._version, address, sums, place, number)
        self._live.add(saved)
        self._log.watch(address)
        self._numpy.save(tensor, sums)
        weakref.finalize(saved, self._release, address).atexit = False
        return saved

    def _release(self, address: int) -> None:
        if self._log.release(address):
            self._numpy.release(address)

    def _unpack(self, saved: _Saved) -> Tensor:
        tensor = saved.tensor
        if tensor._version != saved.version:
            raise RuntimeError(  # as without hooks, whose versions PyTorch does not compare
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{tensor.type()} {list(tensor.shape)}] is at version "
                f"{tensor._version}; expected version {saved.version} instead."
            )
        # The name is private, and there is no other way to ask for the running node.
        node = torch._C._current_autograd_node()
        if saved.assigned is not None:
            other, producer = saved.assigned
            # For an input, PyTorch holds the tensor itself and sees its new memory; for an output,
            # it holds the old memory.
            if producer is not node:
                tensor = other
        if saved.sums is not None:
            self._compare(saved, tensor, None if node is None else node.name())
        return tensor

    def _compare(self, saved: _Saved, tensor: Tensor, node: str | None) -> None:
        if tensor.untyped_storage().data_ptr() != saved.address:
            place = saved.assigned_at or Place("written", None)
            self._report(describe_rebound(tensor, saved.place, place, node))
        elif sum_bytes(tensor) != saved.sums:
            self._numpy.compare()
            write = self._log.first_write(saved.address, saved.number)
            if write is not None:
                where = write.place, write.operator
            elif node is not None and _UPDATES_STATISTICS in node:
                return
            else:
                where = Place("written", None), None
            self._report(describe_overwritten(tensor, saved.place, *where, node))
