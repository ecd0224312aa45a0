"""`Rehearsal`: a program, the rig it is to run on, and how faithfully."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AnyrigError
from ..virtual.rig import VirtualRig
from ..virtual.torch_import import when_torch_is_imported
from .program import INTERRUPTED, Program

if TYPE_CHECKING:
    from ..virtual.inheritance import Inheritance


@dataclass(frozen=True)
class Rehearsal:
    """An unchanged program on virtual GPUs.

    Attributes:
        program: what runs.
        rig: the GPUs it finds.
        shape_only: keep no data and compute nothing; bytes, shapes and errors stay the same.
        assume_values: with `shape_only`, go on with a constant where the program needs a value
            that was never computed, instead of stopping there.
    """

    program: Program
    rig: VirtualRig
    shape_only: bool = False
    assume_values: bool = False

    def __post_init__(self) -> None:
        if self.assume_values and not self.shape_only:
            raise ValueError(
                "assume_values without shape_only: a rehearsal that computes has every value; "
                "leave assume_values out, or add shape_only"
            )

    def run(self) -> int:
        """Run the program in this process, once; return its exit status.

        The GPUs appear when the program imports torch, and so they do in every Python process
        that it starts; all of them share the cards.

        Raises:
            NoCompilerError: virtual GPUs must be built first, and there is no compiler.
            BuildError: they cannot be built.
            AnyrigError: they cannot be installed: a real GPU is present, or another rig is.
        """
        from ..virtual.installed import install

        refusals: list[AnyrigError] = []

        def install_rig() -> None:
            try:
                install(self.rig, shape_only=self.shape_only, assume_values=self.assume_values)
            except AnyrigError as error:
                refusals.append(error)
                raise SystemExit(error.exit_code) from None
            except KeyboardInterrupt:  # during a build; the program itself has not begun
                raise SystemExit(INTERRUPTED) from None

        self._hand_down()  # the program may start processes and never import torch itself
        when_torch_is_imported(install_rig)
        status = self.program.run()
        if refusals:
            raise refusals[0]
        return status

    @contextmanager
    def of_processes(self) -> Iterator[None]:
        """Give the rig to the Python processes started within the block, in place of this one.

        They must have ended at its end: what they shared the cards through is then removed, in
        whatever way they ended.
        """
        from ..virtual.card_folder import remove_unless_used

        inherited = self._hand_down()
        try:
            yield
        finally:
            if inherited is not None:
                remove_unless_used(Path(inherited.cards))

    def _hand_down(self) -> Inheritance | None:
        from ..virtual.installed import Installation, inherit_from_here

        return inherit_from_here(
            Installation(self.rig, self.shape_only, self.assume_values, clock=True)
        )
