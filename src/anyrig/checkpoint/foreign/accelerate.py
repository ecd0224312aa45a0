"""Read a folder that accelerate's ``save_state`` wrote.

::

    model.safetensors              or pytorch_model.bin, or shards with an index
    model_1.safetensors            a further model
    optimizer.bin, scheduler.bin   torch files of state dicts; optimizer_1.bin, … of further ones
    scaler.pt                      torch file of the GradScaler's state
    sampler.bin                    a pickled sampler
    random_states_0.pkl            a pickle of one rank's random numbers
    custom_checkpoint_0.pkl        a registered object's state

Pickles of whole objects are not read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .inside import find_inside
from .torch_file import read_torch_file

_STATES = re.compile(r"(optimizer|scheduler)(_\d+)?\.bin|scaler\.pt")
_UNREAD = re.compile(
    r"(random_states_\d+|custom_checkpoint_\d+)\.pkl|(sampler|dl_state_dict)(_\d+)?\.bin"
)
_FURTHER_MODEL = re.compile(r"(pytorch_)?model_\d+\.(safetensors|bin)")


def find_accelerate_reason(folder: Path) -> str | None:
    """Return what shows that a folder is accelerate's, or None."""
    names = sorted(path.name for path in folder.iterdir())
    found = [name for name in names if _STATES.fullmatch(name) or name == "random_states_0.pkl"]
    return f"next to the model, it has {', '.join(found[:4])}" if found else None


def is_state_file(name: str) -> bool:
    """Return whether `read_states` reads a file of this name."""
    return _STATES.fullmatch(name) is not None


def read_states(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the states next to the model by the files' stems, and why other files are not read.

    Raises:
        UnsafeFileError: a file would run code, or leads out of the folder.
        CheckpointDamagedError: a file is truncated or altered.
    """
    states: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name in sorted(path.name for path in folder.iterdir()):
        if is_state_file(name):
            path = find_inside(folder, name, named_by=str(folder))
            states[path.stem] = read_torch_file(path)
        elif _FURTHER_MODEL.fullmatch(name):
            unread[name] = "a further model; give this file itself to read it"
        elif _UNREAD.fullmatch(name):
            unread[name] = "a pickle of whole objects, which could run code"
    return states, unread
