"""What takes the place of values while a module is traced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from .recorder import Recorder

IN_PLACE_OPERATORS = (
    *("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift"),
    *("isub", "itruediv", "ixor"),
)


class Value(fx.Proxy):
    """Records operators as `torch.fx.Proxy` does, and those in place (``x += y``) as such."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __delitem__(self, key: Any) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, key), {})


def _record_in_place(name: str) -> Callable[[Value, Any], Any]:
    function = getattr(operator, name)

    def recorded(self: Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return recorded


for _name in IN_PLACE_OPERATORS:
    setattr(Value, f"__{_name}__", _record_in_place(_name))


class State(Value):
    """A parameter or buffer. Its shape is known; its values are read when the graph runs."""

    def __init__(self, node: fx.Node, tracer: Recorder, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self._tensor = tensor

    @property
    def shape(self) -> torch.Size:
        """The sizes."""
        return self._tensor.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._tensor.ndim

    def size(self, *args: Any) -> Any:
        """Return the sizes, or one of them."""
        return self._tensor.size(*args)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self._tensor.dim()

    def numel(self) -> int:
        """Return the number of elements."""
        return self._tensor.numel()

    def __len__(self) -> int:
        return len(self._tensor)


class Mode(fx.Proxy):
    """Stands for ``module.training``, passed on as a value; where code branches on it, assumed."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.tracer = recorder
        self.module_name = name

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        """A new node that reads the mode when it runs."""
        prefix = f"{self.module_name}." if self.module_name else ""
        recorder: Any = self.tracer
        found: fx.Node = recorder.create_node("get_attr", f"{prefix}training", (), {})
        return found

    def __bool__(self) -> bool:
        recorder: Any = self.tracer
        assumed: bool = recorder.assume_mode(self.module_name)
        return assumed
