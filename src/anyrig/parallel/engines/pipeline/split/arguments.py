"""The arguments of a module's call, as the values that blocks read.

Arguments that are None, bools, strings, dtypes, devices or enum members may decide which code runs,
so a chain is made for calls in which these are the same. The other arguments are values that blocks
read.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .....errors import SpreadError

_FIXED = (type(None), bool, str, torch.dtype, torch.device, enum.Enum)
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Which arguments a module gets, and which of them are fixed.

    Attributes:
        signature: the signature of the module's forward.
        kind: the name of the module's class.
        names: the arguments that are values, in order; ``"xs[0]"`` is the first of ``*xs``.
        fixed: the other arguments by name.
        kinds: the types of the example's values by name.
        examples: the example's values by name.
    """

    signature: inspect.Signature
    kind: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]
    kinds: Mapping[str, type]
    examples: Mapping[str, Any]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a call by name.

        Raises:
            TypeError: as the module raises it.
            SpreadError: a fixed argument has a different value.
        """
        given = _flatten(self.signature, args, kwargs)
        for name in given.keys() | self.fixed.keys():
            if name in self.names:
                continue
            value, assumed = given.get(name), self.fixed.get(name)
            if name not in self.fixed or name not in given or not _same(value, assumed):
                raise SpreadError(
                    f"this {self.kind} was divided for calls with {name}={assumed!r}; this call "
                    f"has {name}={_short(value)}, which may decide which code runs. Divide the "
                    "module with an example of the calls that follow: example=(args, kwargs)"
                )
        missing = [name for name in self.names if name not in given]
        if missing:
            raise SpreadError(
                f"this {self.kind} was divided for calls with {', '.join(missing)}; this call has "
                "no such argument"
            )
        return {name: given[name] for name in self.names}

    def call_with(self, stand_in: Callable[[str], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return (args, kwargs) of a call, with stand-ins for the values."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in self.signature.parameters.items():
            kind = parameter.kind
            if kind is parameter.VAR_POSITIONAL:
                parts = [each for each in self._all_names() if each.startswith(f"{name}[")]
                args += [self._one(part, stand_in) for part in parts]
            elif kind is parameter.VAR_KEYWORD:
                start = f"{name}."
                parts = [each for each in self._all_names() if each.startswith(start)]
                kwargs.update({p.removeprefix(start): self._one(p, stand_in) for p in parts})
            elif kind is parameter.KEYWORD_ONLY:
                kwargs[name] = self._one(name, stand_in)
            else:
                args.append(self._one(name, stand_in))
        return args, kwargs

    def _all_names(self) -> list[str]:
        return sorted([*self.names, *self.fixed], key=lambda n: (len(n), n))

    def _one(self, name: str, stand_in: Callable[[str], Any]) -> Any:
        return stand_in(name) if name in self.names else self.fixed[name]


def read_arguments(module: nn.Module, example: Call | None, fix_numbers: bool) -> Arguments:
    """Return which arguments the calls of `module` have.

    Args:
        module: the module whose forward is called.
        example: (args, kwargs) of a call. None assumes the arguments without a default.
        fix_numbers: whether numbers are fixed, because a loop may run that many times.
    """
    signature = inspect.signature(module.forward)
    fixed_kinds = (*_FIXED, int, float) if fix_numbers or example is None else _FIXED
    if example is not None:
        given = _flatten(signature, *example)
    else:
        given = {}
        for name, parameter in signature.parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                given[name] = _VALUE if parameter.default is parameter.empty else parameter.default
    fixed = {name: value for name, value in given.items() if isinstance(value, fixed_kinds)}
    names = tuple(name for name in given if name not in fixed)
    kinds = {name: _kind_of(given[name]) for name in names if given[name] is not _VALUE}
    examples = {name: given[name] for name in kinds}
    return Arguments(signature, type(module).__name__, names, fixed, kinds, examples)


_VALUE = object()


def _kind_of(value: Any) -> type:
    return torch.Tensor if isinstance(value, torch.nn.Parameter) else type(value)


def _flatten(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    flat: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            flat.update({f"{name}[{i}]": each for i, each in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            flat.update({f"{name}.{key}": each for key, each in value.items()})
        else:
            flat[name] = value
    return flat


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a is b or (not isinstance(a, torch.Tensor) and bool(a == b)))


def _short(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)[:60]
