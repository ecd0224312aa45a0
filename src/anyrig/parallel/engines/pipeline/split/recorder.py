"""What a module computes, recorded as a graph of operations without computing it.

The recorder uses `torch.fx`. It differs from `torch.fx.symbolic_trace` where exactness needs it:

- A submodule that cannot be traced is one operation, and the reason is kept.
- Parameters, buffers, `training` and plain tensors are read when the graph runs.
- Every call of PyTorch is recorded, so that no random number or constant is made while tracing.
- A call of a `torch.autograd.Function` is one operation, with a backward pass of its own.
- A forward that changes attributes of its module or draws Python's random numbers is not traced.
- Regions of `torch.no_grad` and `torch.autocast` are kept per operation.

Longer than 400 lines, because `torch.fx` calls the methods of one class.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from ....own_class import has_own_class
from .boundaries import SMALL_PART
from .caches import clear_caches_of_stand_ins
from .checkpoint_calls import module_called_by, refuse_hidden_checkpoint
from .conditions import expected_truth, require_truth
from .custom_functions import recorded_functions
from .example_facts import FactCheck
from .kinds import PLAIN_KINDS, KindCheck, kind_of_node, type_in_code_of
from .known_values import UNKNOWN, KnownValues
from .patches import RecordEverything, makes_tensor, modes_of, patched
from .recorded_facts import RecordedFacts
from .recording import Recording
from .refusal import CannotTraceError, explain_failure, find_caller
from .side_effects import (
    copy_attributes,
    find_change,
    has_hooks,
    place_of,
    read_collections,
    read_random_state,
    restore_attributes,
    restore_random_state,
)
from .stand_in_tracer import StandInTracer
from .stand_ins import State, Value, isinstance_of_stand_ins

# PyTorch's forwards that only call their module's children, and are therefore traced.
_TRACED_OF_TORCH = {
    nn.Sequential.forward,
    nn.TransformerEncoder.forward,
    nn.TransformerDecoder.forward,
}
# Facts of real tensors that tracing may use, because later changes of the module keep them.
_FACTS = {"size", "dim", "numel", "__len__", "is_floating_point", "is_complex", "stride"}
_FACT_PROPERTIES = {"shape", "ndim", "requires_grad", "is_leaf", "layout", "is_sparse", "is_nested"}


class Recorder(StandInTracer):
    """Records one module in one mode."""

    def __init__(self, module: nn.Module, training: bool, device: torch.device) -> None:
        super().__init__(autowrap_functions=(checkpoint.checkpoint,))
        self._module, self._training, self._device = module, training, device
        self._names = {id(m): name for name, m in module.named_modules()}
        self._tensor_names: dict[int, str] = {}
        named = [*module.named_buffers(), *module.named_parameters()]
        self._tensor_names.update({id(tensor): name for name, tensor in named})
        self.asked = [None]
        self._has_ended = False
        self._total = sum(p.numel() for p in module.parameters()) or 1
        self._open: list[tuple[str, int]] = []
        self._numbers: dict[str, int] = {}
        self._base_context = _read_context()
        self.recording = Recording(fx.Graph(), RecordedFacts(self._names))

    def record(
        self,
        make_arguments: Callable[[Callable[[str], fx.Proxy]], Any],
        kinds: Mapping[str, type],
        examples: Mapping[str, Any],
    ) -> Recording:
        """Return the recording of the module's forward.

        Args:
            make_arguments: returns (args, kwargs) of the call, given a function that makes the
                stand-in of an argument.
            kinds: the types of arguments by name, as far as they are known.
            examples: the example's arguments by name; empty without an example.

        Raises:
            Exception: anything that the forward raises because its values are not known.
        """
        self._make_arguments, self._kinds = make_arguments, kinds
        self._has_example = bool(examples)
        self._known = KnownValues(
            self._module, self.recording, examples, self._device, self._training
        )
        with (
            torch.enable_grad(),
            modes_of(self, self._module),
            patched(self),
            type_in_code_of(self._module),
            isinstance_of_stand_ins(),
            recorded_functions(self.create_proxy, lambda: not self.is_computing_known),
        ):
            self._base_context = _read_context()
            self._collections = read_collections()
            before = [(m, copy_attributes(m)) for m in self._module.modules()]
            try:
                graph = self.trace(self._module)
            finally:
                self._has_ended = True
                for m, attributes in before:
                    if find_change(m, attributes) is not None:  # such as hooks of a submodule
                        restore_attributes(m, attributes)
                clear_caches_of_stand_ins()
        self.recording.graph = graph
        return self.recording

    # The methods below override those of fx.Tracer.

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """Return a function that calls the forward, and no arguments for it."""

        def stand_in(name: str) -> fx.Proxy:
            made: fx.Proxy = self.create_proxy("placeholder", name, (), {})
            return made

        args, kwargs = self._make_arguments(stand_in)

        def call_root() -> Any:
            with RecordEverything(self), self._noting():
                return self._call_forward(
                    self._module, lambda: self._module.forward(*args, **kwargs)
                )

        return call_root, []

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Trace the call of a submodule, or record it as one operation."""
        if self.is_computing_known:
            return forward(*args, **kwargs)
        name = self._names.get(id(m))
        if name is None and not any(True for _ in m.parameters()):
            return forward(*args, **kwargs)  # made in the code, such as a criterion
        if name is None:
            raise CannotTraceError(
                f"{type(m).__name__} is called, but is not a submodule", find_caller()
            )
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        self._open.append((name, number))
        try:
            if self._is_leaf(m):
                self._refuse_collecting(m)
                return self.create_proxy("call_module", name, args, kwargs)
            last = next(iter(reversed(self.graph.nodes)), None)
            assumed, facts = set(self.recording.assumed), self.recording.facts.copy()
            depth = len(self._open)
            try:
                return self._call_forward(m, lambda: forward(*args, **kwargs))
            except Exception as error:
                del self._open[depth:]
                self._forget_after(last)
                self.recording.assumed = assumed
                self.recording.facts.restore(facts)
                self.recording.undivided[name] = explain_failure(error)
                return self.create_proxy("call_module", name, args, kwargs)
        finally:
            self._open.pop()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """Read parameters and buffers when the graph runs."""
        if isinstance(attr_val, Tensor) and not self.is_computing_known:
            name = self._tensor_names.get(id(attr_val))
            if name is not None:
                return State(self.create_node("get_attr", name, (), {}), self, attr_val)
        return attr_val

    def create_arg(self, a: Any) -> Any:
        """Return what a node stores for an argument."""
        if isinstance(a, Tensor):
            name = self._tensor_names.get(id(a)) or self.tensor_attrs.get(a)
            if name is None:
                name = f"constant {len(self.recording.constants)}"
                self.recording.constants[name] = a
                self._tensor_names[id(a)] = name
            return self.create_node("get_attr", name, (), {})
        if issubclass(type(a), Value) and not self.is_live(a):
            raise CannotTraceError("a value of an earlier call is used", find_caller())
        a = module_called_by(a) or a
        if isinstance(a, nn.Module):
            if id(a) not in self._names:
                raise CannotTraceError(f"{type(a).__name__} is used, but is not a submodule")
            return self.create_node("get_attr", self._names[id(a)], (), {})
        if isinstance(a, dict) and type(a) is not dict:
            return self._create_special_dict(a)
        try:
            return super().create_arg(a)
        except NotImplementedError as error:
            raise CannotTraceError(
                f"a {type(a).__name__} holds values of a call, and only tuples, lists, dicts and "
                "dataclasses are followed; if it is a cache, call the module with use_cache=False",
                place_of(self._module),
            ) from error

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node, with the place and context in which it was made."""
        node = super().create_node(kind, target, *args, **kwargs)
        node.meta["calls"] = tuple(self._open)
        node.meta["place"] = find_caller()
        node.meta["known"] = self._known.compute(node)
        context = _read_context()
        if context != self._base_context:
            node.meta["context"] = context
        return node

    def proxy(self, node: fx.Node) -> Value:
        """Return the stand-in of a node's value."""
        return Value(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Record a check, or refuse to branch on a value."""
        place = find_caller()
        expected = expected_truth(place)
        if expected is None:
            return bool(self.fact(obj, bool, "which code runs depends on a value"))
        self.create_proxy("call_function", require_truth, (obj, expected, place), {})
        return expected

    def iter(self, obj: fx.Proxy) -> Any:
        """Iterate over as many items as the example has, and record a check of their number."""
        known = self._known.of(obj.node)
        if not isinstance(known, (tuple, list, Tensor)):
            raise CannotTraceError("a loop iterates over a value", find_caller())
        values: Any = obj
        length = self.fact(obj, len, "a loop iterates over a value")
        return [values[i] for i in range(length)].__iter__()

    def assume_mode(self, name: str) -> bool:
        """Return the mode to trace for; a small module that branches on it is not traced."""
        inner = self._module.get_submodule(self._open[-1][0]) if self._open else self._module
        share = sum(p.numel() for p in inner.parameters()) / self._total
        if inner is not self._module and share <= SMALL_PART:
            raise CannotTraceError("which code runs depends on the mode", find_caller())
        self.recording.assumed.add(name)
        return self._training

    # The methods below are not in fx.Tracer.

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *more: Any, **named: Any
    ) -> Any:
        """Record an operation; return a stand-in, or the value if it is a known text or None.

        Refuse an operation of a checkpoint that is not recorded.
        """
        refuse_hidden_checkpoint(outermost=Recorder.record.__code__)
        made = super().create_proxy(kind, target, args, kwargs, *more, **named)
        known = made.node.meta["known"]
        if kind == "placeholder" or target in (operator.setitem, operator.delitem):
            return made
        if known is None or isinstance(known, str):
            self.fact(made, is_none if known is None else str, "a text is not known")
            return known
        return made

    def known_attribute(self, value: Value, name: str) -> Any:
        """Return what is known of an attribute of a value, or `UNKNOWN`."""
        known = self._known.of(value.node)
        return UNKNOWN if known is UNKNOWN else self._known.attribute(known, name)

    def fact(self, value: fx.Proxy, read: Callable[[Any], Any], refusal: str) -> Any:
        """Return what `read` finds in a value, by the example, and record a check of it."""
        known = self._known.of(value.node)
        fact = UNKNOWN
        if known is not UNKNOWN and not (isinstance(known, Tensor) and read is not len):
            with suppress(Exception):
                fact = read(known)
        if fact is UNKNOWN:
            remedy = ""
            if kind_of_node(value.node, {}) in PLAIN_KINDS and not self._has_example:
                remedy = " (example=(args, kwargs) of a call fixes shapes and dtypes of arguments)"
            raise CannotTraceError(f"{refusal}{remedy}", find_caller())
        check = FactCheck(read, fact, find_caller())
        self.create_node("call_function", check, (value.node,), {})
        return fact

    def expect_kind(self, value: Value, exact: bool = False, missing: str = "") -> type:
        """Return the type that a value is expected to have, and record a check of it."""
        if issubclass(type(value), State):
            return type(value.tensor)
        kind = kind_of_node(value.node, self._kinds)
        check = KindCheck(kind, exact, missing, find_caller())
        self.create_proxy("call_function", check, (value,), {})
        return kind

    def kind_or_known(self, value: Value) -> Any:
        """Return an object that has a value's attributes: the known value, or its type."""
        if value.node.op != "placeholder":
            known = self._known.of(value.node)
            if known is not UNKNOWN:
                return known
        return self.expect_kind(value)

    def is_plain(self, value: Value) -> bool:
        """Return whether a value is a known dtype, device, number or tuple."""
        return isinstance(self._known.of(value.node), PLAIN_KINDS)

    def is_live(self, value: fx.Proxy) -> bool:
        """Return whether a stand-in is of this recording, which has not ended."""
        if self._has_ended:
            return False
        node = value.node
        # Private: whether `_forget_after` erased the node. There is no public way to ask.
        return node.graph is self.graph and not node._erased

    @property
    def is_computing_known(self) -> bool:
        """Whether an operation runs without data, which is not to be recorded."""
        return self._known.is_computing

    def name_of_tensor(self, tensor: Any) -> str | None:
        """Return the name of a parameter or buffer."""
        return self._tensor_names.get(id(tensor))

    def record_call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of PyTorch that has no stand-ins among its arguments."""
        name = getattr(function, "__name__", "")
        if name == "_set_grad_enabled" and args == (True,) and torch.is_grad_enabled():
            raise CannotTraceError("gradients are enabled in a part of forward", find_caller())
        owner = getattr(function, "__self__", None)
        if name in _FACTS or getattr(owner, "__name__", "") in _FACT_PROPERTIES:
            return function(*args, **kwargs)
        if name == "__get__" and owner is not None:
            tensor = args[0]
            return self.create_proxy("call_function", getattr, (tensor, owner.__name__), {})
        flat = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(each, Tensor) for each in flat) and not makes_tensor(function):
            return function(*args, **kwargs)
        return self.create_proxy("call_function", function, args, kwargs)

    def _noting(self) -> AbstractContextManager[None]:
        return self.recording.facts.noting(lambda: not self.is_computing_known)

    def _refuse_collecting(self, m: nn.Module) -> None:
        """Refuse hooks that may give forward their values: hooks run with the graph, and later."""
        for variable, value in read_collections().items():
            known = self._collections.get(variable) is value
            if not known and any(has_hooks(each) for each in m.modules()):
                raise CannotTraceError(
                    f"forward sets the context variable {variable.name!r}, in which hooks of "
                    f"{type(m).__name__} may collect values",
                    find_caller(),
                )

    def _is_leaf(self, m: nn.Module) -> bool:
        kind = type(m)
        home = getattr(kind.forward, "__module__", "") or ""
        plain = kind.__call__ is nn.Module.__call__ and "forward" not in vars(m)
        traceable = kind.forward in _TRACED_OF_TORCH or not home.startswith("torch.")
        if getattr(m, "use_nested_tensor", False) and kind.forward in _TRACED_OF_TORCH:
            self.recording.undivided[self._names[id(m)]] = (
                f"this {kind.__name__} may compute with nested tensors in evaluation mode; make it "
                "with enable_nested_tensor=False"
            )
            return True
        # A layer reads the extra tensors of its quantised weights, and keeps some for later calls.
        is_whole = any(each is not None and has_own_class(each) for each in m._parameters.values())
        is_whole |= has_hooks(m) or "Parametrized" in kind.__name__
        return is_whole or not (plain and traceable)

    def _call_forward(self, m: nn.Module, forward: Callable[[], Any]) -> Any:
        """Call a forward, and make sure that tracing has no effects other than the recording."""
        before, numbers = copy_attributes(m), read_random_state()
        try:
            result = forward()
            changed = find_change(m, before)
            if changed is not None:
                raise CannotTraceError(f"forward changes the attribute {changed!r}", place_of(m))
            if read_random_state() != numbers:
                raise CannotTraceError("forward draws random numbers of Python", place_of(m))
            self.recording.facts.divide(m)
        finally:
            restore_attributes(m, before)
            restore_random_state(numbers)
        return result

    def _forget_after(self, last: fx.Node | None) -> None:
        for node in reversed(self.graph.nodes):
            if node is last:
                return
            self.graph.erase_node(node)

    def _create_special_dict(self, a: Any) -> fx.Node:
        if dataclasses.is_dataclass(a):
            fields = {f.name: getattr(a, f.name) for f in dataclasses.fields(a)}
            made: fx.Proxy = self.create_proxy("call_function", type(a), (), fields)
        else:
            made = self.create_proxy("call_function", type(a), (list(a.items()),), {})
        return made.node


def is_none(value: object) -> bool:
    """Return whether a value is None."""
    return value is None


def _read_context() -> tuple[Any, ...]:
    autocast = tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    )
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast
