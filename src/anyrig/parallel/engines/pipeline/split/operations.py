"""The recorded operations of a block, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn

from .part import Part


def fill(argument: Any, value_of: Callable[[fx.Node], Any]) -> Any:
    """Return a recorded argument with its nodes replaced by values, in plain containers."""
    if isinstance(argument, fx.Node):
        return value_of(argument)
    if isinstance(argument, tuple):
        parts = [fill(each, value_of) for each in argument]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if isinstance(argument, list):
        return [fill(each, value_of) for each in argument]
    if isinstance(argument, dict):
        return {key: fill(each, value_of) for key, each in argument.items()}
    if isinstance(argument, slice):
        parts = [fill(each, value_of) for each in (argument.start, argument.stop, argument.step)]
        return slice(*parts)
    return argument


def read_state(module: nn.Module, constants: dict[str, Any], target: str) -> Any:
    """Return the present value of the attribute or constant `target`."""
    if target in constants:
        return constants[target]
    owner, _, name = target.rpartition(".")
    held = module.get_submodule(owner)
    return getattr(held, name) if name else held


def call_node(node: fx.Node, args: Any, kwargs: Any, module: nn.Module | None = None) -> Any:
    """Return what a recorded operation computes; `module` has the submodules."""
    target: Any = node.target
    if node.op == "call_module":
        assert module is not None
        return module.get_submodule(target)(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


class Variant:
    """The operations of a block for one mode of the module.

    Args:
        module: the whole module, whose state the operations read.
        constants: tensors that no module holds.
        nodes: the operations in order.
        reads: the names of the block's read values; None at places that this mode does not need.
        writes: the nodes of the written values; None for values that this mode does not make.
        names: the names of the values, by node.
    """

    def __init__(
        self,
        module: nn.Module,
        constants: dict[str, Any],
        nodes: Sequence[fx.Node],
        reads: Sequence[str],
        writes: Sequence[fx.Node | None],
        names: Mapping[fx.Node, str],
    ) -> None:
        self._module, self._constants = module, constants
        self._nodes = list(nodes)
        self._place_of = {name: i for i, name in enumerate(reads)}
        self._writes = list(writes)
        self._names = names
        own = set(nodes)
        kept = {node for node in writes if node is not None}
        last: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            for used in node.all_input_nodes:
                if used in own and used not in kept:
                    last[used] = node
        self._done_after: dict[fx.Node, list[fx.Node]] = {}
        for used, node in last.items():
            self._done_after.setdefault(node, []).append(used)
        self._own = own

    def state_names(self) -> list[str]:
        """Return the names of the parameters, buffers and submodules that the operations use."""
        names = []
        for node in self._nodes:
            if node.op == "call_module":
                names.append(str(node.target))
            names += [str(used.target) for used in node.all_input_nodes if used.op == "get_attr"]
        return [name for name in names if name not in self._constants]

    def compute(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the written values."""
        values: dict[fx.Node, Any] = {}

        def value_of(node: fx.Node) -> Any:
            if node.op == "get_attr":
                return read_state(self._module, self._constants, str(node.target))
            if node in self._own:
                return values[node]
            return inputs[self._place_of[self._names[node]]]

        for node in self._nodes:
            values[node] = self._run(node, value_of)
            for done in self._done_after.get(node, ()):
                del values[done]
        return tuple(None if node is None else values[node] for node in self._writes)

    def _run(self, node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
        args: Any = fill(node.args, value_of)
        kwargs: Any = fill(node.kwargs, value_of)
        context = node.meta.get("context")
        if context is None:
            return call_node(node, args, kwargs, self._module)
        with ExitStack() as regions:
            enabled, inference, autocast = context
            if inference != torch.is_inference_mode_enabled():
                regions.enter_context(torch.inference_mode(inference))
            if not enabled:
                regions.enter_context(torch.no_grad())
            for kind, active, dtype in autocast:
                if active != torch.is_autocast_enabled(kind):
                    regions.enter_context(torch.autocast(kind, dtype, enabled=active))
            return call_node(node, args, kwargs, self._module)


class Operations(Part):
    """A block of recorded operations, with the state that they use under the module's names."""

    def __init__(
        self,
        module: nn.Module,
        variants: dict[tuple[bool | None, bool | None], Variant],
        live_mode: Callable[[], bool | None],
        counts: bool,
    ) -> None:
        super().__init__(module)
        self._variants, self._live_mode, self._counts = variants, live_mode, counts
        for variant in variants.values():
            for name in variant.state_names():
                self.include(name)

    def forward(self, *inputs: Any) -> Any:
        """Return the written values of the block."""
        one_sample = inputs[-1] if self._counts else None
        written = self._variants[self._live_mode(), one_sample].compute(inputs)
        return written[0] if len(written) == 1 else written
