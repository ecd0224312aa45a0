"""Replacing objects of PyTorch where its modules took them by name.

While torch is imported, its modules take functions and classes from each other by name. Setting the
name anew in the module that defines it reaches only who asks later.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch


def bind(functions: Mapping[str, object]) -> None:
    """Set `functions` in `torch._C`, for modules too that took those of a build for CUDA."""
    old = {name: vars(torch._C)[name] for name in functions if hasattr(torch._C, name)}
    for name, function in functions.items():
        setattr(torch._C, name, function)
    replace_in_torch(old, functions)


def replace_in_torch(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Set `new` in each module of PyTorch that holds the object of `old` under the same name."""
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.partition(".")[0] != "torch":
            continue
        held = vars(module)
        for name in old.keys() & held.keys():
            if held[name] is old[name]:
                setattr(module, name, new[name])
