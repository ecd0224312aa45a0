"""What the processes of a rehearsal have from the one that started them.

Three variables of the environment make a Python process virtual:

- ``ANYRIG_REHEARSAL``: the arguments of `install`, and the folder through which the processes share
  the cards, as JSON: ``{"rig": "4xA100-80GB", "shape_only": false, …, "cards": "/tmp/…"}``.
- ``PYTHONPATH``: begins with the folder `startup`, whose `sitecustomize` Python runs at its start.
- ``ANYRIG_LEASE_DIRECTORY``: a folder beside the cards, since the cards of two rehearsals have the
  same UUIDs.

A process that is started without them, or with ``-I``, ``-E`` or ``-S``, is not virtual.

Three more, of `driver`, are for programs that ask NVML or `nvidia-smi`, in whatever language:
``ANYRIG_DRIVER``, ``LD_LIBRARY_PATH`` and ``PATH``.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..devices.lease_file import DIRECTORY_VARIABLE as LEASE_VARIABLE
from ..errors import VirtualRigError
from .driver.facts import facts_of
from .driver.library import answer_here, driver_environment
from .rig import VirtualRig

VARIABLE = "ANYRIG_REHEARSAL"
STARTUP = Path(__file__).parent / "startup"

_CARDS = "cards"
_STARTED = "started"


@dataclass(frozen=True)
class Inheritance:
    """The rig of a rehearsal, as its processes hand it down.

    Attributes:
        arguments: of `install`, the rig as text.
        cards: the folder through which the processes share the cards.
        started: when the rehearsal started, in seconds since 1970.
    """

    arguments: Mapping[str, object]
    cards: str
    started: float = field(default_factory=time.time)

    @classmethod
    def read(cls) -> Inheritance | None:
        """Return what this process inherited, or None if it was started outside a rehearsal.

        Raises:
            VirtualRigError: the variable holds something else.
        """
        text = os.environ.get(VARIABLE)
        if text is None:
            return None
        try:
            word = dict(json.loads(text))
            cards, started = str(word.pop(_CARDS)), float(word.pop(_STARTED, time.time()))
            return cls(word, cards, started)
        except (ValueError, TypeError, KeyError) as error:
            raise VirtualRigError(
                f"{VARIABLE}={text!r} is not what a rehearsal hands down to its processes "
                f"({type(error).__name__}: {error}); unset it"
            ) from None

    def hand_down(self) -> None:
        """Make the processes that are started from here on virtual."""
        os.environ.update(self._environment())

    def answer_nvml_here(self) -> None:
        """Let NVML know the rig in this process, which was not started with its environment."""
        answer_here(self._facts)

    @functools.cached_property
    def _facts(self) -> str:
        rig = VirtualRig.parse(str(self.arguments["rig"]))
        return facts_of(rig, str(Path(self.cards) / "cards"))

    @contextmanager
    def handed_down(self) -> Iterator[None]:
        """Make the processes virtual that are started within the block."""
        variables = self._environment()
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [entry for entry in path if entry not in ("", str(STARTUP))]
        return {
            VARIABLE: json.dumps({**self.arguments, _CARDS: self.cards, _STARTED: self.started}),
            "PYTHONPATH": os.pathsep.join([str(STARTUP), *others]),
            LEASE_VARIABLE: str(Path(self.cards) / "leases"),
            **driver_environment(self._facts),
        }
