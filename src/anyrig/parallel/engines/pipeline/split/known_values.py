"""What is known of recorded values: each operation also runs without data, on the meta device.

::

    recorded    x ────────────▶ x.dtype ──────▶ x.dtype != float32 ──▶ `if`: which branch?
    known       a meta tensor   float64         True                   the first, and a check

With an example of the arguments, values have known types, shapes, dtypes and numbers. Operations
stay symbolic: `x.view(len(x), -1)` reads the length in each call. A known fact is used only where
code needs a number, a truth, a length or a text while it is recorded. Each such use is recorded as
a `FactCheck`. Values of tensors are never known.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from .conditions import require_truth
from .example_facts import FactCheck
from .operations import fill, read_state
from .recording import Recording
from .side_effects import (
    copy_attributes,
    has_hooks,
    read_random_state,
    restore_attributes,
    restore_random_state,
)

_META = torch.device("meta")
# Attributes of tensors that differ between the meta device and others, or between calls.
_UNKNOWN_ATTRIBUTES = {
    *("requires_grad", "is_leaf", "grad", "grad_fn", "retains_grad", "output_nr", "data_ptr"),
    *("_base", "_version", "names", "get_device", "type", "storage", "untyped_storage"),
}
_KINDS_OF_DEVICES = ("cpu", "cuda", "xpu", "mps", "meta", "ipu", "hpu", "xla", "mtia", "maia")


class _Unknown:
    """The type of `UNKNOWN`."""


UNKNOWN = _Unknown()


class KnownValues:
    """Computes what is known of recorded values.

    Args:
        module: the module that is recorded.
        recording: the recording, for its constants.
        examples: the arguments of the example, by name.
        device: the kind of device on which values are assumed to be.
        training: the mode that the recording assumes.
    """

    def __init__(
        self,
        module: nn.Module,
        recording: Recording,
        examples: Mapping[str, Any],
        device: torch.device,
        training: bool,
    ) -> None:
        self._module, self._recording, self._training = module, recording, training
        kind = device.type
        self._device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
        self._examples = {name: _without_data(value) for name, value in examples.items()}
        self._states: dict[int, tuple[Any, Tensor]] = {}
        self.is_computing = False

    def compute(self, node: fx.Node) -> Any:
        """Return what is known of a node's value, or `UNKNOWN`."""
        before, self.is_computing = self.is_computing, True
        try:
            return self._compute(node)
        finally:
            self.is_computing = before

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._examples.get(str(node.target), UNKNOWN)
        if node.op == "get_attr":
            return self._read(str(node.target))
        if isinstance(node.target, FactCheck) or node.target is require_truth:
            return UNKNOWN
        if any(self.of(used) is UNKNOWN for used in node.all_input_nodes):
            return UNKNOWN
        args: Any = fill(node.args, self.of)
        kwargs: Any = fill(node.kwargs, self.of)
        try:
            with warnings.catch_warnings(), torch.no_grad(), _META:
                warnings.simplefilter("ignore")
                return self._call(node, args, kwargs)
        except Exception:  # operations that need data, and all that a module may raise without it
            return UNKNOWN

    def of(self, node: fx.Node) -> Any:
        """Return what `compute` returned for a node."""
        return node.meta.get("known", UNKNOWN)

    def attribute(self, known: Any, name: str) -> Any:
        """Return a known value's attribute, or `UNKNOWN`."""
        if isinstance(known, Tensor):
            if name in _UNKNOWN_ATTRIBUTES:
                return UNKNOWN
            if name == "device":
                return self._device
            if name.startswith("is_") and name[3:] in _KINDS_OF_DEVICES:
                return self._device.type == name[3:]
        return getattr(known, name, UNKNOWN)

    def _read(self, target: str) -> Any:
        if target.rpartition(".")[2] == "training":
            return self._training
        value = read_state(self._module, self._recording.constants, target)
        return self._state(value) if isinstance(value, Tensor) else value

    def _state(self, tensor: Tensor) -> Any:
        if id(tensor) not in self._states:
            self._states[id(tensor)] = tensor, _without_data(tensor)
        return self._states[id(tensor)][1]

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if target is getattr:
            return self.attribute(*args)
        if node.op == "call_module":
            return self._call_module(self._module.get_submodule(target), args, kwargs)
        if target is checkpoint.checkpoint:
            if not isinstance(args[0], nn.Module):
                return UNKNOWN
            return self._call_module(args[0], args[1:], {})
        is_operator = vars(operator).get(getattr(target, "__name__", "")) is target
        if is_operator:
            return target(*args)
        args, kwargs = pytree.tree_map(_on_meta, (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = _META
        if node.op != "call_method":
            return target(*args, **kwargs)
        if isinstance(args[0], Tensor) and target in _UNKNOWN_ATTRIBUTES:
            return UNKNOWN
        if isinstance(args[0], Tensor) and target in _KINDS_OF_DEVICES:
            return args[0]
        if target == "to":
            args = tuple(_META if _names_device(each) else each for each in args)
        return getattr(args[0], target)(*args[1:], **kwargs)

    def _call_module(self, held: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module that is one operation, with its state on the meta device."""
        modules = list(held.modules())
        if any(has_hooks(m) for m in modules):
            return UNKNOWN
        named = (*held.named_parameters(), *held.named_buffers())
        state = {name: self._state(tensor) for name, tensor in named}
        before = [(m, copy_attributes(m)) for m in modules]
        numbers = read_random_state()
        for m in modules:
            m.__dict__["training"] = self._training
        try:
            return torch.func.functional_call(held, state, args, kwargs)
        finally:
            restore_random_state(numbers)
            for m, attributes in before:
                restore_attributes(m, attributes)


def _without_data(value: Any) -> Any:
    """Return an argument or state with meta tensors in place of tensors, or `UNKNOWN`."""
    leaves, tree = pytree.tree_flatten(value)
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if type(leaf) not in (Tensor, nn.Parameter) or leaf.layout is not torch.strided:
                return UNKNOWN
            found.append(leaf.detach().to("meta"))
        elif isinstance(leaf, (int, float, complex, str, type(None), torch.dtype, torch.device)):
            found.append(leaf)
        else:
            return UNKNOWN
    return pytree.tree_unflatten(found, tree)


def _on_meta(leaf: Any) -> Any:
    return _META if isinstance(leaf, torch.device) else leaf


def _names_device(value: Any) -> bool:
    return isinstance(value, str) and value.partition(":")[0] in _KINDS_OF_DEVICES
