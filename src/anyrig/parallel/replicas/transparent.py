"""A wrapper that has its inner module's parameters, names and attributes as its own."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import SpreadError

_FSDP = {"torch.distributed.fsdp": ("FullyShardedDataParallel", "FSDPModule")}
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def _of_the_inner(name: str) -> Any:
    """Return a method that calls the inner module's and returns the wrapper, not the module."""

    @functools.wraps(getattr(torch.nn.Module, name))
    def method(self: TransparentModule, *args: Any, **kwargs: Any) -> Any:
        returned = getattr(self.module, name)(*args, **kwargs)
        return self if returned is self.module else returned

    return method


class TransparentModule(torch.nn.Module):
    """Has the parameters, buffers, children, state and attributes of an inner module as its own.

    It shares the inner module's dictionaries of parameters, buffers and children, so reads and
    writes reach the inner module under its own names. A method of the inner module hides a method
    of the wrapper that only a spread model has, such as `refresh`.
    """

    module: torch.nn.Module  # the inner module

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._show(module)

    def _show(self, module: torch.nn.Module) -> None:
        state = self.__dict__
        state["module"] = state["_anyrig_module"] = module
        state.update({name: module.__dict__[name] for name in _SHARED})
        state.update({name: getattr(module, name) for name in self._hidden_by(module)})

    def _hidden_by(self, module: torch.nn.Module) -> list[str]:
        """Return the names of the wrapper's own methods that `module` has methods for, too."""
        own = {
            name: method
            for cls in type(self).__mro__[: type(self).__mro__.index(TransparentModule)]
            for name, method in vars(cls).items()
            if callable(method) and not name.startswith("_")
        }
        shared = dir(TransparentModule)
        return [name for name in own if name not in shared and hasattr(type(module), name)]

    @property
    def training(self) -> bool:
        """Whether the inner module is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "module" in self.__dict__:  # missing during torch.nn.Module.__init__
            self.module.training = mode

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("module")
        if module is None:  # while a copy is built
            raise AttributeError(name)
        found = getattr(module, name)
        is_own = inspect.ismethod(found) and found.__self__ is module
        return self._method(found) if is_own and not hasattr(torch.nn.Module, name) else found

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a caller gets as a method that the inner module's class has defined."""
        return method

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "module":
            raise AttributeError(
                "the module of a spread model cannot be replaced; spread the new module instead"
            )
        if name in self.__dict__ or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.module)})

    # Methods that the inner module's class may override.
    named_modules = _of_the_inner("named_modules")
    apply = _of_the_inner("apply")
    train = _of_the_inner("train")
    zero_grad = _of_the_inner("zero_grad")
    state_dict = _of_the_inner("state_dict")
    _apply = _of_the_inner("_apply")
    # Called where the wrapper is a child of a larger module.
    _load_from_state_dict = _of_the_inner("_load_from_state_dict")

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state of the inner module, or one that `torch.nn.DataParallel` has saved."""
        own = any(name == "module" for name, _ in self.module.named_children())
        if state_dict and not own and all(name.startswith("module.") for name in state_dict):
            state_dict = {name.removeprefix("module."): state_dict[name] for name in state_dict}
        return self.module.load_state_dict(state_dict, strict, assign)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the norm of all gradients of the model, on every rig, and return it.

        This is the inner module's method of this name, if it has one, otherwise
        `torch.nn.utils.clip_grad_norm_`. Where ranks have parts of the model, every rank must call
        it.
        """
        own = getattr(self.module, "clip_grad_norm_", None)
        if own is None:
            own = functools.partial(torch.nn.utils.clip_grad_norm_, self.parameters())
        total: torch.Tensor = own(max_norm, norm_type, error_if_nonfinite)
        return total

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module!r})"

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = {*_SHARED, "_anyrig_module", *self._hidden_by(self.module)}
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__.update(state)
        self._show(self.__dict__["module"])

    # The inner module's method would copy the inner module alone.
    __deepcopy__: Any = None


def require_plain_module(module: object) -> None:
    """Raise SpreadError unless `module` is a module that is not spread already."""
    if not isinstance(module, torch.nn.Module):
        raise SpreadError(
            f"a {type(module).__name__} is not a torch.nn.Module; spread the module that it calls"
        )
    if isinstance(module, TransparentModule):
        raise SpreadError(
            f"this {type(module.module).__name__} is spread already; spread the module itself, "
            "which is its attribute module"
        )
    for name, each in module.named_modules():
        if isinstance(each, _spread_otherwise()):
            place = f"the module {name!r} is" if name else "this module is"
            inner = "its attribute module" if hasattr(each, "module") else "as it was before"
            raise SpreadError(
                f"{place} a {type(each).__name__}, which PyTorch has spread over devices already; "
                f"spread the module itself, {inner}"
            )


def _spread_otherwise() -> tuple[type, ...]:
    """Return PyTorch's classes of spread modules, without an import of FSDP, which takes long."""
    found: list[type] = [torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel]
    for package, names in _FSDP.items():
        known = sys.modules.get(package)
        found += [getattr(known, name) for name in names if hasattr(known, name)]
    return tuple(found)
