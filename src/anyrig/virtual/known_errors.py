"""The known errors of the times of virtual GPUs, in sentences."""

from __future__ import annotations

from ..hardware import Spec, known_errors, program_errors


def errors_text(spec: Spec) -> str:
    """Return a sentence about the errors of predicted times that are known for a GPU's kernels."""
    errors = known_errors(spec)
    known = [f"{kind} {error:g} %" for kind, error in errors.items() if error is not None]
    unknown = [kind for kind, error in errors.items() if error is None]
    about = f"median error of {spec.key}'s times where measured: "
    if not known:
        return f"{about}unknown; no measured kernels of this GPU have been compared"
    return about + ", ".join(known) + (f"; unknown: {', '.join(unknown)}" if unknown else "")


def program_errors_text(spec: Spec) -> str:
    """Return a sentence about the errors that are known for whole programs on a GPU."""
    about = f"mean error of whole programs on {spec.key}: "
    known = [
        f"{each.kind} {each.mean:g} % (of {each.programs}, the largest {each.largest:g} %)"
        for each in program_errors(spec)
    ]
    return about + (", ".join(known) or "unknown; no measured programs have been compared")
