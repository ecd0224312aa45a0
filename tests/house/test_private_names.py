"""Every private name of PyTorch that anyrig uses is listed, with what breaks without it."""

import ast
from pathlib import Path

import torch  # noqa: F401  # names are looked up in its imported modules

import anyrig
from anyrig.private_names import (
    NAMES_OF_CUDA,
    NAMES_OF_OTHER_ROOMS,
    NAMES_OF_VIRTUAL_GPUS,
    NAMES_OF_VIRTUAL_GROUPS,
    find_missing,
)

PACKAGE = Path(anyrig.__file__).parent
NAMES = (*NAMES_OF_VIRTUAL_GPUS, *NAMES_OF_VIRTUAL_GROUPS, *NAMES_OF_OTHER_ROOMS, *NAMES_OF_CUDA)

# Added by virtual GPUs, or modules whose names are listed.
OTHERS = {"_C", "_symmetric_memory", "_cuda_maybeExchangeDevice"}


def private_names_in(file: Path) -> set[str]:
    """Return the parts of the private names that `file` takes from PyTorch's modules."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            found |= set(ast.unparse(node).split(".")) if is_of_torch(ast.unparse(node)) else set()
        elif isinstance(node, ast.ImportFrom) and is_of_torch(f"{node.module}."):
            found |= {*str(node.module).split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if is_of_torch(alias.name)]
            found |= {part for name in names for part in name.split(".")}
    return {
        name
        for name in found
        if name.isidentifier() and name.startswith("_") and not name.startswith("__")
    }


def is_of_torch(text: str) -> bool:
    return text.startswith("torch.")


def test_every_private_name_is_listed() -> None:
    """Add a name that fails here to `private_names.py`, with what breaks without it."""
    listed = {part for one in NAMES for part in one.name.split(".")} | OTHERS
    missing = {
        str(file.relative_to(PACKAGE)): names
        for file in PACKAGE.rglob("*.py")
        if (names := private_names_in(file) - listed)
    }
    assert missing == {}


def test_every_listed_name_exists() -> None:
    names = (*NAMES_OF_VIRTUAL_GPUS, *NAMES_OF_VIRTUAL_GROUPS, *NAMES_OF_OTHER_ROOMS)
    assert find_missing(names) == []
    assert all(one.breaks for one in NAMES)
