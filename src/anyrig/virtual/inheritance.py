"""The environment variables by which the processes of a rehearsal inherit the rig.

Three variables give a Python process the virtual GPUs:

- ``ANYRIG_REHEARSAL``: JSON with the arguments of `install` and the folder through which the
  processes share the GPUs:
  ``{"rig": "4xA100-80GB", "shape_only": false, …, "gpus": "/tmp/…", "started": 1764…}``.
- ``PYTHONPATH``: begins with the folder `startup`, whose `sitecustomize` Python runs at its start.
- ``ANYRIG_LEASE_DIRECTORY``: a folder of the rehearsal, because the GPUs of two rehearsals can have
  the same UUIDs.

A process started without these variables, or with ``-I``, ``-E`` or ``-S``, has no virtual GPUs.

`extras.driver` adds ``ANYRIG_DRIVER``, ``LD_LIBRARY_PATH`` and ``PATH``, by which programs in any
language find NVML and `nvidia-smi`.
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
from . import extras
from .rig import VirtualRig
from .scratch import Scratch

VARIABLE = "ANYRIG_REHEARSAL"
STARTUP = Path(__file__).parent / "startup"

_GPUS = "gpus"
_STARTED = "started"


@dataclass(frozen=True)
class Inheritance:
    """The rig of a rehearsal, as a process passes it on to the processes that it starts.

    Attributes:
        arguments: the arguments of `install`, with the rig as text.
        gpus: the folder through which the processes share the GPUs.
        started: when the rehearsal started, in seconds since 1970.
    """

    arguments: Mapping[str, object]
    gpus: str
    started: float = field(default_factory=time.time)

    @functools.cached_property
    def scratch(self) -> Scratch:
        """The scratch folder of a shape-only rehearsal."""
        return Scratch.for_rehearsal(self.gpus, self.started)

    @classmethod
    def read(cls) -> Inheritance | None:
        """Return what this process inherited, or None if it was started outside a rehearsal.

        Raises:
            VirtualRigError: ``ANYRIG_REHEARSAL`` cannot be parsed.
        """
        text = os.environ.get(VARIABLE)
        if text is None:
            return None
        try:
            arguments = dict(json.loads(text))
            gpus = str(arguments.pop(_GPUS))
            started = float(arguments.pop(_STARTED, time.time()))
            return cls(arguments, gpus, started)
        except (ValueError, TypeError, KeyError) as error:
            raise VirtualRigError(
                f"{VARIABLE}={text!r} is not what a rehearsal passes on to its processes "
                f"({type(error).__name__}: {error}); unset it"
            ) from None

    def hand_down(self) -> None:
        """Give the rig to the processes that this process starts from now on."""
        os.environ.update(self._environment())

    def load_nvml(self) -> None:
        """Make NVML report the rig in this process, which was started without the variables."""
        extras.load_libraries(self._rig, self._ledger)

    @functools.cached_property
    def _rig(self) -> VirtualRig:
        return VirtualRig.parse(str(self.arguments["rig"]))

    @property
    def _ledger(self) -> str:
        return str(Path(self.gpus) / "gpus")

    @contextmanager
    def handed_down(self) -> Iterator[None]:
        """Give the rig to the processes that are started within the block."""
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
            VARIABLE: json.dumps({**self.arguments, _GPUS: self.gpus, _STARTED: self.started}),
            "PYTHONPATH": os.pathsep.join([str(STARTUP), *others]),
            LEASE_VARIABLE: str(Path(self.gpus) / "leases"),
            **extras.environment(self._rig, self._ledger),
        }
