"""How far the times of virtual GPUs are known to be off."""

from __future__ import annotations

from ..hardware import Spec, known_errors, program_errors
from .rig import VirtualRig


def error_shares(rig: VirtualRig) -> dict[str, dict[str, float | None]]:
    """Return the median relative error of each GPU's predicted times, by kind of work.

    The kinds are those of kernels, and of whole programs where these were compared. The error is
    None where none is known. A GPU that is given by its size alone is left out: its times predict
    nothing.
    """
    specs = {device.spec.key: device.spec for device in rig.devices if device.spec is not None}
    return {key: _shares(spec) for key, spec in specs.items()}


def _shares(spec: Spec) -> dict[str, float | None]:
    kernels = {
        kind: None if percent is None else percent / 100
        for kind, percent in known_errors(spec).items()
    }
    programs = {f"whole {errors.kind}": errors.median / 100 for errors in program_errors(spec)}
    return {**kernels, **programs}
