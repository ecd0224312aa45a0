"""An `nn.Sequential` as a chain: one block per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ....errors import SpreadError
from ..chain import Block, Chain, Values

INPUT = "input"


def is_sequential(module: nn.Module) -> bool:
    """Return whether `module` calls its children one after another, and nothing else."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and type(module).__call__ is nn.Module.__call__
        and "forward" not in vars(module)
        and not any(hooks)
    )


def chain_of_sequential(module: nn.Sequential) -> Chain:
    """Return a chain with a block for each layer; layers without parameters join the one before."""
    groups: list[list[tuple[str, nn.Module]]] = []
    for name, layer in _layers(module, ""):
        holds_state = next(layer.parameters(), None) is not None
        if not groups or (holds_state and any(True for _, x in groups[-1] for _ in x.parameters())):
            groups.append([])
        groups[-1].append((name, layer))
    blocks, read = [], INPUT
    for group in groups:
        name, written = group[0][0], f"output of {group[-1][0]}"
        one = group[0][1] if len(group) == 1 else nn.Sequential(*(layer for _, layer in group))
        blocks.append(Block(name, one, (read,), (written,)))
        read = written

    def bind(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) + len(kwargs) != 1 or set(kwargs) - {INPUT}:
            raise SpreadError(
                f"an nn.Sequential takes one argument; this call has {len(args)} positional and "
                f"{len(kwargs)} named arguments"
            )
        return {INPUT: args[0] if args else kwargs[INPUT]}

    def build(values: Values) -> Any:
        return values[read]

    return Chain(tuple(blocks), bind, build, (read,))


def _layers(module: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module._modules.items():
        if child is not None and is_sequential(child):
            yield from _layers(child, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif child is not None:
            yield f"{prefix}{name}", child
