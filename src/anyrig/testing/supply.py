"""CUDA devices for the tests of one process: the machine's own, or virtual ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ..errors import NoCompilerError
from ..units import format_count

DEFAULT_RIG = "4xA100-80GB"


@dataclass
class GpuSupply:
    """Where this process's CUDA devices come from: decided at the first need, then kept.

    Attributes:
        rig: the text of the virtual rig for a machine without a GPU.
        for_children: the processes that tests start have a virtual rig too, from the time on when
            it is installed; else only those of tests that `given_to_children` surrounds.
        shown: surrounds what may take a minute and shows its progress on standard error.
        found: how many devices there are and where they are from; None before the first need.
    """

    rig: str = DEFAULT_RIG
    for_children: bool = False
    shown: Callable[[], AbstractContextManager[None]] = nullcontext
    found: tuple[int, str] | None = None

    def find(self) -> tuple[int, str]:
        """Return how many CUDA devices there are, and in words where they are from, or why none.

        Where the machine has none, the virtual rig is installed, for the rest of the process.

        Raises:
            AnyrigError: virtual GPUs cannot be installed, for another reason than that there is no
                compiler to build them.
        """
        if self.found is None:
            self.found = self._decide()
        return self.found

    def lack(self, count: int) -> str | None:
        """Return why there are not `count` CUDA devices, or None if there are."""
        there, where = self.find()
        if there >= count:
            return None
        verb = "is" if there == 1 else "are"
        return f"needs {format_count(count, 'CUDA device')}, and there {verb} {there}: {where}"

    def given_to_children(self) -> AbstractContextManager[None]:
        """Give the virtual rig, where it is one, to the processes started within the block."""
        from ..virtual.installed import inheritance

        inherited = inheritance()
        return nullcontext() if inherited is None else inherited.handed_down()

    def _decide(self) -> tuple[int, str]:
        import torch

        from ..virtual import install, installation

        if installation() is None:
            if real := torch.cuda.device_count():
                return real, "of this machine"
            try:
                with self.shown():
                    install(self.rig, children=self.for_children)
            except NoCompilerError as error:
                return 0, str(error)
        there = torch.cuda.device_count()
        return there, f"virtual, from `pytest --rig {self.rig}`"
