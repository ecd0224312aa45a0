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
# PyTorch reserves these names, so they can be removed wherever they stand in a name.
_RESERVED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(frozen=True)
class WrapperPrefix:
    """A prefix of every name on one side, without which the names are those of the other side.

    Attributes:
        text: the prefix with its last dot, for example ``"module."``.
        is_of_file: whether the file's names have the prefix; otherwise the model's names have it.
    """

    text: str
    is_of_file: bool

    @property
    def wrapper(self) -> str:
        """What adds this prefix, or "another module" if that is unknown."""
        parts = self.text.rstrip(".").split(".")
        known = [WRAPPERS[part] for part in parts if part in WRAPPERS]
        return " and ".join(known) if len(known) == len(parts) else "another module"


def find_prefix(expected: Collection[str], found: Collection[str]) -> WrapperPrefix | None:
    """Return the prefix that one side's names have and the other's have not.

    The prefix must begin every name of its side, and at least half of the other side's names must
    be found once it is removed. Names that already agree need no prefix.
    """
    if not expected or not found or 2 * len(set(expected) & set(found)) >= len(expected):
        return None
    for longer, shorter, is_of_file in ((found, expected, True), (expected, found, False)):
        first = min(longer)
        wanted = set(shorter)
        for end in (index + 1 for index, letter in enumerate(first) if letter == "."):
            prefix = first[:end]
            if not all(name.startswith(prefix) for name in longer):
                break
            if 2 * len({name[end:] for name in longer} & wanted) >= len(wanted):
                return WrapperPrefix(prefix, is_of_file)
    return None


def remove_wrappers(name: str) -> str:
    """Return a name without the parts that only PyTorch's wrappers add, wherever they stand."""
    return ".".join(part for part in name.split(".") if part not in _RESERVED)


def shared_prefix(names: Collection[str]) -> str:
    """Return ``"module."`` as often as every name begins with it, otherwise the empty text."""
    prefix = ""
    while names and all(name.startswith(f"{prefix}module.") for name in names):
        prefix += "module."
    return prefix
