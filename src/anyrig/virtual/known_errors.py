"""The known errors of the times of virtual GPUs, as a sentence."""

from __future__ import annotations

from ..hardware import Spec, known_errors


def errors_text(spec: Spec) -> str:
    """Return a sentence about the errors of predicted times that are known for a GPU."""
    errors = known_errors(spec)
    known = [f"{kind} {error:g} %" for kind, error in errors.items() if error is not None]
    unknown = [kind for kind, error in errors.items() if error is None]
    about = f"median error of {spec.key}'s times where measured: "
    if not known:
        return f"{about}unknown; no measured kernels of this GPU have been compared"
    return about + ", ".join(known) + (f"; unknown: {', '.join(unknown)}" if unknown else "")
