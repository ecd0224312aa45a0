"""CUDA devices for the tests of one process: the node's GPUs, or virtual GPUs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ..errors import NoCompilerError
from ..units import format_count

DEFAULT_RIG = "4xA100-80GB"


@dataclass
class GpuSupply:
    """The source of this process's CUDA devices, chosen on first use and then kept.

    Attributes:
        rig: the text of the virtual rig for a node without a GPU.
        without_kernels: whether the rig may have GPUs for which PyTorch has no kernels.
        for_children: whether every process started after the installation has the virtual rig too;
            otherwise only processes started within `given_to_children` have it.
        shown: a context manager around the installation, which may take a minute and shows its
            progress on standard error.
        found: the number of devices and their source; None before the first use.
    """

    rig: str = DEFAULT_RIG
    without_kernels: bool = False
    for_children: bool = False
    shown: Callable[[], AbstractContextManager[None]] = nullcontext
    found: tuple[int, str] | None = None

    def find(self) -> tuple[int, str]:
        """Return the number of CUDA devices, and their source or why there are none.

        If the node has no GPU, install the virtual rig for the rest of the process.

        Raises:
            AnyrigError: virtual GPUs cannot be installed, for a reason other than a missing
                compiler.
        """
        if self.found is None:
            self.found = self._decide()
        return self.found

    def lack(self, count: int) -> str | None:
        """Return why there are fewer than `count` CUDA devices, or None if there are enough."""
        there, where = self.find()
        if there >= count:
            return None
        verb = "is" if there == 1 else "are"
        return f"needs {format_count(count, 'CUDA device')}, and there {verb} {there}: {where}"

    def given_to_children(self) -> AbstractContextManager[None]:
        """Pass the virtual rig, if one is installed, to processes started within the block."""
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
                    install(
                        self.rig,
                        children=self.for_children,
                        without_kernels=self.without_kernels,
                    )
            except NoCompilerError as error:
                return 0, str(error)
        there = torch.cuda.device_count()
        return there, f"virtual, from `pytest --rig {self.rig}`"
