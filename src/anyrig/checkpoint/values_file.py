"""Plain values and small tensors in one file, which is read without running any code."""

from __future__ import annotations

import base64
import io
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointDamagedError, CheckpointError, UnsafeFileError
from ..regular_file import open_regular
from ..transfer.tree import map_leaves
from .foreign.pickle_scan import always_allowed_names, scan_pickle

_REMEDY = (
    "A checkpoint can hold numbers, strings, tensors, and lists, tuples and dicts of these: save "
    "the values from which the object can be made again"
)

# PyTorch took its classes from those that it reads with pull request 194380.
_JAGGED = (
    "a jagged nested tensor, which PyTorch does not read from files since 2.15; its values() and "
    "offsets() are tensors, from which torch.nested.nested_tensor_from_jagged makes it again"
)
# Where the classes for jagged nested tensors lie; `_decode` imports these modules.
_OF_NESTED = ("torch.nested.", "torch._dynamo.")


def encode_values(values: dict[str, Any]) -> bytes:
    """Return the content of the file. Tensors are copied to the host.

    Raises:
        CheckpointError: reading a value would run code; the message names the value.
    """
    data = _encode(values)
    if data is not None:
        return data
    # Name values as the caller did, not by their place in the file.
    named = {**values, **values.get("states", {}), **values.get("given", {})}
    name, problem = _culprit({k: v for k, v in named.items() if k not in ("states", "given")})
    raise CheckpointError(f"the value {name} cannot be saved: {problem}. {_REMEDY}")


def decode_values(path: Path) -> dict[str, Any]:
    """Return the values in a file.

    Raises:
        UnsafeFileError: the file would run code.
        CheckpointDamagedError: the file is missing, cut off or altered, or is not a regular file.
    """
    try:
        with open_regular(path) as file, io.BufferedReader(file) as buffered:
            return _decode(buffered, path)
    except OSError as error:
        raise _damaged(path, error) from None


def encode_as_text(values: dict[str, Any]) -> str:
    """Return `encode_values` as text, for ranks to exchange."""
    return base64.b85encode(encode_values(values)).decode()


def decode_text(text: str, path: Path) -> dict[str, Any]:
    """Return the values that `encode_as_text` has encoded; `path` is the file that has the text.

    Raises:
        UnsafeFileError: the text would run code.
        CheckpointDamagedError: the text was altered.
    """
    try:
        data = base64.b85decode(text)
    except ValueError as error:
        raise _damaged(path, error) from None
    return _decode(io.BytesIO(data), path)


def _decode(source: Any, path: Path) -> dict[str, Any]:
    try:
        try:
            values = _load(source)
        except pickle.UnpicklingError as error:
            if "torch.nested" not in str(error):
                raise
            import torch._dynamo
            import torch.nested  # noqa: F401  # PyTorch then allows jagged nested tensors

            source.seek(0)
            values = _load(source)
    except pickle.UnpicklingError as error:
        if "torch.nested" in str(error):
            raise UnsafeFileError(
                f"{path} has {_JAGGED}. Load it with PyTorch 2.14, and save these instead"
            ) from None
        raise UnsafeFileError(
            f"{path} would run code, and anyrig has not written it: {_first_line(error)}"
        ) from None
    except Exception as error:  # PyTorch's reader raises errors of many kinds
        raise _damaged(path, error) from None
    if not isinstance(values, dict):
        raise CheckpointDamagedError(f"{path} has a {type(values).__name__}, not a dict", path)
    return values


def _damaged(path: Path, error: Exception) -> CheckpointDamagedError:
    return CheckpointDamagedError(
        f"{path} cannot be read: {_first_line(error)}. Load another checkpoint of the series", path
    )


def _encode(values: Any) -> bytes | None:
    """Return the file's content; None if reading the content would run code."""
    file = io.BytesIO()
    try:
        torch.save(map_leaves(values, _to_host), file)
        _load(io.BytesIO(file.getvalue()))
    except (pickle.PickleError, AttributeError, TypeError, ValueError, RuntimeError):
        return None
    return file.getvalue() if _loads_everywhere(file) else None


def _loads_everywhere(file: io.BytesIO) -> bool:
    """Return whether a new process reads the file, which this process has read.

    This process may have allowed more classes: the program, or the import of `torch.nested`, has
    called `torch.serialization.add_safe_globals`.
    """
    if not torch.serialization.get_safe_globals():
        return True
    with zipfile.ZipFile(file) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
        scan = scan_pickle(io.BytesIO(archive.read(name)), "values")
    odd = scan.names - always_allowed_names()
    return all(name.startswith(_OF_NESTED) for name in odd)


def _load(source: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(source, map_location="cpu", weights_only=True)


def _to_host(leaf: Any, path: object) -> Any:
    if not isinstance(leaf, torch.Tensor):
        # NumPy's numbers, such as the mean of losses, become Python's.
        is_number = type(leaf).__module__ == "numpy" and getattr(leaf, "shape", None) == ()
        return leaf.item() if is_number else leaf
    if hasattr(leaf, "full_tensor"):
        raise TypeError("a tensor in shards")
    # A view would be saved with the whole memory behind it.
    return leaf.detach().to("cpu", copy=True)


def _culprit(value: Any, name: str = "") -> tuple[str, str]:
    """Return the name of the innermost value that cannot be saved, and why."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{name}[{key!r}]" if name else str(key), each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{index}]", each) for index, each in enumerate(value)]
    for inner, each in items:
        if _encode(each) is None:
            return _culprit(each, inner)
    kind = type(value)
    if hasattr(value, "full_tensor"):
        return name, "it is a tensor in shards; only those of models and optimizers are gathered"
    if isinstance(value, torch.Tensor) and value.layout is torch.jagged:
        return name, f"it is {_JAGGED}"
    return name, f"it is of type {kind.__module__}.{kind.__qualname__}"


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]
