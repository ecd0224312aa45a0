"""What differs between the versions of PyTorch that this room supports.

Each difference names the version at which its older or newer half begins, and has a test in
``tests/parallel/test_torch_versions.py`` that fails when the older half can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, GeneratorType
from typing import Any

import torch

Function = type[torch.autograd.Function]
# Returns the result of ``apply`` of a class, or NotImplemented to call PyTorch's own.
Intercept = Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]


def intercept_custom_functions(intercept: Intercept) -> AbstractContextManager[None]:
    """Send the calls of ``apply`` of ``torch.autograd.Function``'s classes to a function.

    This includes calls through an ``apply`` that was read earlier (``f = SomeFunction.apply``).
    Until 2.13, `apply` is a Python function that calls the base class's `apply`. From 2.14 it is a
    C++ function, bound to the class where it was read.
    """
    if hasattr(torch.autograd.function, "_call_custom_function_call"):
        return _intercept_apply_in_cpp(intercept)
    return _intercept_apply_in_python(intercept)


def prepare_simulated_answer(backend: str, received: Any, sent: Any) -> None:
    """Copy `sent` to `received` before an all-to-all in a group whose other ranks are simulated.

    From 2.13, PyTorch's ``fake`` process group answers with what was sent. In 2.11 it leaves the
    output as it is.

    Args:
        backend: the name of the group's backend.
        received: the buffer of `ctypes` that the all-to-all writes.
        sent: the buffer that the all-to-all reads, of the same size.
    """
    if backend == "fake":
        received.raw = sent.raw


def end_checkpoint(call: FrameType) -> None:
    """Remove the hooks on saved tensors of a call of `checkpoint` whose function is about to fail.

    From 2.13 on, `checkpoint` does so itself. Before 2.13, its hooks stay until a garbage
    collection, and the next forward pass gives them its tensors.

    Args:
        call: a frame of PyTorch's file of `checkpoint`.
    """
    forward = call.f_locals.get("gen")
    if isinstance(forward, GeneratorType) and not forward.gi_running:  # a running one fails itself
        forward.close()


@contextmanager
def _intercept_apply_in_python(intercept: Intercept) -> Iterator[None]:
    # Private: all calls of `apply` arrive in this class.
    home: Any = torch.autograd.function._SingleLevelFunction

    def apply(cls: Function, *args: Any, **kwargs: Any) -> Any:
        result = intercept(cls, args, kwargs)
        if result is NotImplemented:
            return inherited.__get__(None, cls)(*args, **kwargs)
        return result

    inherited = next(k.__dict__["apply"] for k in home.__mro__ if "apply" in k.__dict__)
    try:
        home.apply = classmethod(apply)
        yield
    finally:
        del home.apply


@contextmanager
def _intercept_apply_in_cpp(intercept: Intercept) -> Iterator[None]:
    """Intercept the C++ `apply`, which calls Python functions of PyTorch in two places.

    ::

        apply(args) ─▶ does the class define setup_context? ─▶ _bind_default_args ┐
                       is a transform of torch.func active? ─▶ _call_custom_function_call ─▶ result

    Make both answers yes. The second function's result is that of `apply`. Nothing else may read
    the arguments in between: C++ takes each object that appears to be a tensor to be one, and a
    stand-in for a value appears to be one.
    """
    home: Any = torch.autograd.function
    base: Any = torch.autograd.Function
    layers: Any = torch._C._functorch
    names = ("_bind_default_args", "_call_custom_function_call")
    originals = [(name, getattr(home, name)) for name in names]
    is_open = False

    def install() -> None:
        for name, function in zip(names, (open_layer, call), strict=True):
            setattr(home, name, function)
        base.setup_context = staticmethod(open_layer)  # differs from that of its base class

    def remove() -> None:
        for name, function in originals:
            setattr(home, name, function)
        del base.setup_context

    def open_layer(forward: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        nonlocal is_open
        layers._grad_increment_nesting()
        is_open = True
        return args, kwargs

    def close_layer() -> None:
        nonlocal is_open
        if is_open:
            is_open = False
            layers._grad_decrement_nesting()

    def call(cls: Function, args: Any, kwargs: Any) -> Any:
        close_layer()
        kwargs = kwargs or {}
        result = intercept(cls, args, kwargs)
        if result is not NotImplemented:
            return result
        remove()
        try:
            apply: Any = cls.apply
            return apply(*args, **kwargs)
        finally:
            install()

    install()
    try:
        yield
    finally:
        close_layer()  # open only if the call was interrupted between the two functions
        remove()
