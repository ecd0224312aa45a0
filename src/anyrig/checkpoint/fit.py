"""Check that saved tensors fit the tensors of live objects: names, shapes and element types.

A value is loaded with the bits that were saved, or refused. Where the caller asks for a conversion,
a floating-point type may become another one, and a complex type another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..errors import KeyMismatchError
from .mismatch import find_mismatch
from .tensor_in_parts import TensorInParts

_MOST_NAMED = 10
_EXTRA_STATE = "_extra_state"  # PyTorch's name; the module itself checks what it gets
CONVERT = "convert_dtypes=True"


def require_fit(
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
    what: str,
    target: str,
    *,
    convert: bool = False,
    free_shapes: Iterable[str] = (),
) -> None:
    """Raise if saved values do not fit the values of an object, by name.

    Args:
        saved: the values of the checkpoint.
        own: the present values of the object.
        what: the state in the checkpoint, for the message.
        target: the object, for the message.
        convert: whether floating-point and complex values may be converted.
        free_shapes: names of tensors whose shapes may differ.

    Raises:
        KeyMismatchError: names, shapes, or element types differ; the message lists them.
    """
    table = _mismatch_table(saved, own)
    require_same_names(saved, own, what, target, table)
    free = {*free_shapes}
    pairs = [
        (name, saved[name], value)
        for name, value in own.items()
        if not _is_lazy(value) and name.rpartition(".")[2] != _EXTRA_STATE
    ]
    wrong = [
        f"{name} in the shape {[*shape]} instead of {[*expected]}"
        for name, one, other in pairs
        if name not in free
        and (shape := _shape_of(one)) is not None
        and (expected := _shape_of(other)) is not None
        and shape != expected
    ]
    if wrong:
        raise KeyMismatchError(f"{what} has {_first(wrong)}. Nothing was loaded{table}")
    wrong = [
        f"{name} as {kind} instead of {wanted}"
        for name, one, other in pairs
        if (kind := _kind_of(one)) != (wanted := _kind_of(other))
        and not (convert and is_convertible(one, other))
    ]
    if wrong:
        raise KeyMismatchError(
            f"{what} has {_first(wrong)}, which is loaded with the same bits or not at all. "
            f"Nothing was loaded. Make {target} with the types that were saved, or convert "
            f"floating-point values with {CONVERT}"
        )
    bare = [name for name, _, value in pairs if isinstance(value, Tensor) and value.is_meta]
    if bare:
        raise KeyMismatchError(
            f"{target} has {_first(bare)} on the meta device, where no value can be loaded. "
            "Nothing was loaded. Give it memory first: model.to_empty(device=…)"
        )


def require_same_names(
    saved: Iterable[str], own: Iterable[str], what: str, target: str, table: str = ""
) -> None:
    """Raise KeyMismatchError, with the table at its end, if the names differ."""
    saved, own = set(saved), set(own)
    if saved == own:
        return
    problems = []
    if own - saved:
        problems.append(f"has no {_list(own - saved)}, which {target} has")
    if saved - own:
        problems.append(f"has {_list(saved - own)}, which {target} does not have")
    raise KeyMismatchError(f"{what} {', and '.join(problems)}. Nothing was loaded{table}")


def is_convertible(saved: Any, own: Any) -> bool:
    """Return whether a tensor may be converted to the element type of another one on request."""
    if not isinstance(saved, (Tensor, TensorInParts)) or not isinstance(own, Tensor):
        return False
    if own.layout is not torch.strided or getattr(saved, "layout", own.layout) is not own.layout:
        return False
    both = (saved.dtype, own.dtype)
    return all(each.is_floating_point for each in both) or all(each.is_complex for each in both)


def _kind_of(value: Any) -> str:
    """Return the element type and the layout of a tensor as text, or that it is not a tensor."""
    if isinstance(value, TensorInParts):
        return str(value.dtype)
    if not isinstance(value, Tensor):
        return "a value that is not a tensor"
    layout = "" if value.layout is torch.strided else f" in the layout {value.layout}"
    return f"{value.dtype}{layout}"


def _is_lazy(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(is_lazy(value))


def _mismatch_table(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return the names and shapes that differ, on lines of their own; empty if none differ."""
    shapes = [{name: _shape_of(each) or () for name, each in side.items()} for side in (own, saved)]
    mismatch = find_mismatch(*shapes)
    return "" if mismatch is None else f"\n{mismatch}"


def _shape_of(value: Any) -> tuple[int, ...] | None:
    if _is_lazy(value):
        return None
    return tuple(value.shape) if isinstance(value, (Tensor, TensorInParts)) else None


def _first(texts: list[str]) -> str:
    more = f", and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _MOST_NAMED} more" if len(ordered) > _MOST_NAMED else ""
    return ", ".join(ordered[:_MOST_NAMED]) + more
