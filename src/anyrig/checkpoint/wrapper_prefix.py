"""Find the prefix that a wrapper such as ``DistributedDataParallel`` adds to every name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# What adds each part of a name, so that a message can explain where the part comes from.
WRAPPERS = {
    "module": "DataParallel or DistributedDataParallel",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "checkpoint_wrapper",
    "model": "a module that holds the model, such as a LightningModule",
}
# PyTorch reserves these names, so they can be removed wherever they stand in a name. They are
# private; without them, names would depend on whether a layer is compiled or recomputed.
_RESERVED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class WrapperPrefixes:
    """Prefixes that all names of a side have; without them, the names agree.

    Attributes:
        of_file: the prefix of the file's names with its last dot, such as ``"module."``, or empty.
        of_model: the prefix of the model's names, or empty.
    """

    of_file: str
    of_model: str


def find_prefixes(expected: Collection[str], found: Collection[str]) -> WrapperPrefixes | None:
    """Return the prefixes by which the names of a model differ from the names of a file.

    With the prefixes replaced, at least half of the model's names must be in the file, and more of
    them than without the replacement; else return None.
    """
    wanted, there = set(expected), set(found)
    pairs = [(a, b) for a in _shared_prefixes(there) for b in _shared_prefixes(wanted)]
    best, most = None, max(len(wanted & there), (len(wanted) - 1) // 2)
    for of_file, of_model in sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1])):
        # A prefix that both sides share gains nothing, so the shorter pair wins.
        moved = {of_model + name[len(of_file) :] for name in there}
        if len(moved & wanted) > most:
            best, most = WrapperPrefixes(of_file, of_model), len(moved & wanted)
    return best


def describe_wrapper(prefix: str) -> str:
    """Return what adds a prefix to the names of a model, or "another module" if it is unknown."""
    parts = prefix.rstrip(".").split(".")
    known = [WRAPPERS[part] for part in parts if part in WRAPPERS]
    return " and ".join(known) if len(known) == len(parts) else "another module"


def _shared_prefixes(names: Collection[str]) -> list[str]:
    """Return every prefix of whole parts that all names begin with, the empty one first."""
    first = min(names, default="")
    ends = [0, *(index + 1 for index, letter in enumerate(first) if letter == ".")]
    return [
        first[:end]
        for end in ends
        if not end or all(name.startswith(first[:end]) for name in names)
    ]


def remove_wrappers(name: str) -> str:
    """Return a name without the parts that only PyTorch's wrappers add, wherever they stand."""
    return ".".join(part for part in name.split(".") if part not in _RESERVED)


def shared_prefix(names: Collection[str]) -> str:
    """Return ``"module."``, repeated as often as every name begins with it, or ``""``."""
    prefix = ""
    while names and all(name.startswith(f"{prefix}module.") for name in names):
        prefix += "module."
    return prefix
