"""Recognise a checkpoint of Lightning: a torch file with the keys that its Trainer writes.

::

    state_dict                     the LightningModule's tensors: usually "model.…"
    optimizer_states, lr_schedulers, callbacks, loops
    epoch, global_step
    pytorch-lightning_version
"""

from __future__ import annotations

from typing import Any

_VERSION_KEYS = ("pytorch-lightning_version", "lightning_version")
_OTHER_KEYS = {"epoch", "global_step", "optimizer_states", "lr_schedulers", "callbacks", "loops"}


def find_lightning_reason(value: Any) -> str | None:
    """Return what shows that a saved object is a Lightning checkpoint, or None."""
    if not isinstance(value, dict) or not isinstance(value.get("state_dict"), dict):
        return None
    for key in _VERSION_KEYS:
        if key in value:
            return f"it has a state_dict and {key} {value[key]!s:.40}"
    others = sorted(_OTHER_KEYS & value.keys())
    if "global_step" in others and len(others) > 2:
        return f"it has a state_dict, {', '.join(others)}"
    return None
