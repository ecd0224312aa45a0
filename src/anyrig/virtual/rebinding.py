"""Replacement of PyTorch's objects in every module that imported them by name.

PyTorch's modules import functions and classes from each other by name. Replacing an object in the
module that defines it does not affect modules that have already imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch


def bind(functions: Mapping[str, object]) -> None:
    """Set `functions` in `torch._C` and in the modules that imported a CUDA build's originals."""
    old = {name: vars(torch._C)[name] for name in functions if hasattr(torch._C, name)}
    for name, function in functions.items():
        setattr(torch._C, name, function)
    replace_in_torch(old, functions)


def replace_in_torch(old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Replace the objects of `old` with those of `new`, by name, in all modules of PyTorch."""
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.partition(".")[0] != "torch":
            continue
        held = vars(module)
        for name in old.keys() & held.keys():
            if held[name] is old[name]:
                setattr(module, name, new[name])
