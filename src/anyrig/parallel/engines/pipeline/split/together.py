"""Which operations must stay in one block: those that change values or state in place.

A value that is changed in place is made and changed in one block, because a later block may get a
copy. The same is true of state that one of several operations changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

from torch import fx, nn

from .conditions import require_truth
from .custom_functions import FunctionCall
from .example_facts import FactCheck
from .in_place_code import function_changes_arguments, module_changes_arguments
from .kinds import PLAIN_KINDS, KindCheck, kind_of_node
from .part_of_loss import PartOfLoss
from .stand_ins import IN_PLACE_OPERATORS

# Results of these may be, or share memory with, their first argument.
_VIEWS = frozenset(
    "view view_as reshape transpose t permute flatten unflatten squeeze unsqueeze expand "
    "expand_as chunk split tensor_split unbind getitem __getitem__ getattr narrow select "
    "contiguous to float half double type type_as detach movedim moveaxis swapaxes swapdims "
    "diagonal unfold cpu cuda real imag as_strided dropout alpha_dropout feature_dropout "
    "feature_alpha_dropout dropout1d dropout2d dropout3d broadcast_to atleast_1d atleast_2d "
    "atleast_3d positive ravel hsplit vsplit dsplit T mT H mH data split_with_sizes unsafe_chunk "
    "unsafe_split view_as_real view_as_complex resolve_conj resolve_neg as_tensor bfloat16 "
    "checkpoint einsum tuple list dict".split()
)
_VIEW_MODULES = (
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)


def find_spans(nodes: Sequence[fx.Node], module: nn.Module) -> list[tuple[int, int, fx.Node]]:
    """Return spans of nodes that must stay together: (first, last, the changing node).

    Positions are indices of `nodes`; -1 for an argument of the module.
    """
    position = {node: i for i, node in enumerate(nodes)}
    origins: dict[Any, set[Any]] = {}
    spans = []
    uses: dict[Any, list[int]] = {}
    changes: dict[Any, fx.Node] = {}
    for i, node in enumerate(nodes):
        found = {used: _origins_of(used, origins) for used in node.all_input_nodes}
        for roots in found.values():
            for root in roots:
                if isinstance(root, str):
                    uses.setdefault(root, []).append(i)
        for changed in changed_inputs(node, module):
            for root in found.get(changed, ()):
                if isinstance(root, str):
                    changes.setdefault(root, node)
                else:
                    spans.append((position.get(root, -1), i, node))
        if node.op == "call_module":
            held = module.get_submodule(str(node.target))
            for name, _ in chain(held.named_buffers(), held.named_parameters()):
                uses.setdefault(f"{node.target}.{name}", []).append(i)
            for name, _ in held.named_buffers():
                changes.setdefault(f"{node.target}.{name}", node)
        aliased = aliased_inputs(node, module)
        origins[node] = {node}.union(*(found.get(used, set()) for used in aliased))
    spans += [(uses[root][0], uses[root][-1], node) for root, node in changes.items()]
    return [span for span in spans if span[1] > span[0]]


def _origins_of(node: fx.Node, origins: dict[Any, set[Any]]) -> set[Any]:
    if node.op == "get_attr":
        return {str(node.target)}
    return origins.get(node, {node})


def _name_of(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def changed_inputs(node: fx.Node, module: nn.Module) -> list[fx.Node]:
    """Return the inputs that a node changes in place."""
    inputs = list(node.all_input_nodes)
    if node.op == "call_module":
        return inputs if _changes_inputs(module.get_submodule(str(node.target))) else []
    name = _name_of(node)
    first = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    in_place = name in ("setitem", "__setitem__", "delitem") or (
        name.endswith("_") and not name.endswith("__")
    )
    in_place = in_place or name in IN_PLACE_OPERATORS or _has_inplace_flag(node)
    if in_place:
        if first is not None and kind_of_node(first, {}) in PLAIN_KINDS:
            return []
        return [first] if first is not None else inputs
    out = node.kwargs.get("out")
    found = [out] if isinstance(out, fx.Node) else []
    if isinstance(node.target, FunctionCall):
        return inputs if node.target.changes_arguments() else []
    if isinstance(node.target, (KindCheck, FactCheck, PartOfLoss)):
        return []
    if not _is_of_torch(node.target) and node.target is not require_truth:
        found += inputs if function_changes_arguments(node.target) else []
    return found


def _has_inplace_flag(node: fx.Node) -> bool:
    """Return whether a functional operation has ``inplace=True``."""
    if node.kwargs.get("inplace", False) is not False:
        return True
    if node.op != "call_function" or not any(each is True for each in node.args[1:]):
        return False
    try:
        names = list(inspect.signature(cast("Callable[..., Any]", node.target)).parameters)
    except ValueError:  # a built-in function, none of which has such an argument
        return False
    return "inplace" in names and node.args[names.index("inplace") :][:1] == (True,)


def aliased_inputs(node: fx.Node, module: nn.Module) -> list[fx.Node]:
    """Return the inputs whose memory the result may share."""
    inputs = list(node.all_input_nodes)
    changed = changed_inputs(node, module)
    if node.op == "call_module":
        held = module.get_submodule(str(node.target))
        ours = not _is_of_torch(type(held).forward)
        return inputs if ours or isinstance(held, _VIEW_MODULES) or changed else []
    if isinstance(node.target, PartOfLoss) or kind_of_node(node, {}) in PLAIN_KINDS:
        return []
    name = _name_of(node)
    if node.op == "call_method" and name in _VIEWS:
        return [each for each in node.args[:1] if isinstance(each, fx.Node)]
    if name in _VIEWS or not _is_of_torch(node.target):
        return inputs
    return changed


def _is_of_torch(target: Any) -> bool:
    if isinstance(target, str):
        return True  # a method
    home = getattr(target, "__module__", None) or ""
    # `builtins`: `x.T` is recorded as `getattr`. No recorded built-in changes its arguments.
    return home in ("", "_operator", "builtins", "math", "torch") or home.startswith("torch.")


def _changes_inputs(held: nn.Module) -> bool:
    """Return whether a module that is one operation may change its inputs."""
    if getattr(held, "inplace", False):
        return True
    if _is_of_torch(type(held).forward):
        return False
    return any(getattr(m, "inplace", False) or module_changes_arguments(m) for m in held.modules())
