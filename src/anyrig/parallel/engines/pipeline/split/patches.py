"""What a recorder changes in PyTorch and in its modules while a forward is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .refusal import CannotTraceError, find_caller, is_of_caller
from .stand_in_tracer import StandInTracer
from .stand_ins import IN_PLACE_OPERATORS, Mode, Value

# These functions refuse symbolic sizes before a TorchFunctionMode sees the call.
_FACTORIES = (
    *("arange", "zeros", "ones", "full", "empty", "eye", "linspace", "tensor", "as_tensor"),
    *("rand", "randn", "randint", "randperm", "normal"),
    *("scalar_tensor", "logspace", "empty_strided", "tril_indices", "triu_indices", "complex"),
)
# So do these, which return no tensors.
_FACTS_OF_DTYPES = ("finfo", "iinfo", "broadcast_shapes", "promote_types", "can_cast")
# The answers of these functions differ between calls, but a recording is made once.
_QUESTIONS = ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled")
# Private: the encoder's and the decoder's forward call these with values, so the calls are recorded
# as operations; else test_layers_of_pytorchs_encoder_are_blocks fails.
_HELPERS_OF_TORCH = ("_get_seq_len", "_detect_is_causal_mask")


class RecordEverything(TorchFunctionMode):
    """Sends the calls of PyTorch without stand-ins to a recorder."""

    def __init__(self, recorder: StandInTracer) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._recorder.is_computing_known:
            return func(*args, **kwargs)
        if any(isinstance(each, fx.Proxy) for each in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        return self._recorder.record_call(func, args, kwargs)


def makes_tensor(function: Callable[..., Any]) -> bool:
    """Return whether a function makes tensors of the sizes that it is given."""
    return getattr(function, "__name__", "") in _FACTORIES


@contextmanager
def modes_of(recorder: StandInTracer, module: nn.Module) -> Iterator[None]:
    """Replace ``training`` of all modules by stand-ins."""
    modules = [(m, name, m.training) for name, m in module.named_modules()]
    try:
        for m, name, _ in modules:
            m.__dict__["training"] = Mode(recorder, name)
        yield
    finally:
        for m, _, training in modules:
            m.__dict__["training"] = training


@contextmanager
def patched(recorder: StandInTracer) -> Iterator[None]:
    """Record functions that make tensors of unknown sizes, and allow ``self.buffer += 1``."""

    def patch(function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(each, fx.Proxy) for each in pytree.tree_leaves((args, kwargs))):
                return recorder.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return recorded

    def refuse_question(name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            asks = is_of_caller(sys._getframe(1).f_code.co_filename)
            if asks and not recorder.is_computing_known:
                what = f"which code runs depends on torch.{name}(), which may differ from call to"
                raise CannotTraceError(f"{what} call", find_caller())
            return ask(*args)

        return asked

    def set_attribute(m: nn.Module, name: str, value: Any) -> None:
        if not _is_changed_in_place(m, name, value, recorder):
            set_before(m, name, value)

    places: list[tuple[Any, str]] = [(torch, name) for name in (*_FACTORIES, *_FACTS_OF_DTYPES)]
    places += [(transformer, name) for name in _HELPERS_OF_TORCH if hasattr(transformer, name)]
    saved = [(home, name, getattr(home, name)) for home, name in places]
    asking = [(torch, name, getattr(torch, name)) for name in _QUESTIONS]
    set_before = nn.Module.__setattr__
    with torch.device("cpu"):
        # At its first call, PyTorch lists the functions that a default device concerns, for good:
        # not those that are put in their places below.
        torch.empty(0)
    try:
        for home, name, function in saved:
            setattr(home, name, patch(function))
        for home, name, function in asking:
            setattr(home, name, refuse_question(name, function))
        nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign, assignment]
        yield
    finally:
        nn.Module.__setattr__ = set_before  # type: ignore[method-assign]
        for home, name, function in saved + asking:
            setattr(home, name, function)


def _is_changed_in_place(m: nn.Module, name: str, value: Any, recorder: StandInTracer) -> bool:
    """Return whether `value` is the buffer of this name, after an in-place operator."""
    if not isinstance(value, Value) or name not in m._buffers:
        return False
    node = value.node
    if getattr(node.target, "__name__", "") not in IN_PLACE_OPERATORS:
        return False
    read = node.args[0]
    target = str(read.target) if isinstance(read, fx.Node) and read.op == "get_attr" else None
    return target is not None and target == recorder.name_of_tensor(m._buffers[name])
