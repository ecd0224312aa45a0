"""ARC117: `torch.load`, which reads only tensors and plain values unless it is told otherwise."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..passed import passed_values
from ..program import Program
from ..rewrite import add_argument, has_stars, keyword
from ..rule import Rule
from ..torch_names import OF_MODULES
from .sources import V2_6

_WHOLE = Kind.MODULE | Kind.OPTIMIZER | Kind.PARALLEL


def find(program: Program) -> Iterator[Hit]:
    """Find `torch.load` without `weights_only`, where the default may be wrong."""
    if program.calls.get("torch.serialization.add_safe_globals"):
        return
    for call in program.calls.get("torch.load", []):
        if _is_decided(program, call):
            continue
        is_whole = _is_saved_whole(program, call) or _is_used_whole(program, call)
        if not (is_whole or program.is_old):
            continue
        edit = add_argument(program, call, f"weights_only={not is_whole}")
        why = (
            "this program keeps whole objects in files, which `torch.load` refuses; save a "
            "`state_dict`, or pass `weights_only=False` for a file that you trust"
            if is_whole
            else "before, the file could run any code; pass `weights_only=True`, or False for a "
            "file that you trust"
        )
        yield Hit(
            program.start(call),
            program.end(call),
            f"since PyTorch 2.6, `torch.load` reads only tensors and plain values: {why}",
            None if edit is None else Fix((edit,), is_safe=not is_whole),
        )


def _is_decided(program: Program, call: ast.Call) -> bool:
    """Return whether the call says what it accepts, itself or by a `with` around it."""
    if keyword(call, "weights_only") is not None or has_stars(call):
        return True
    return any(
        isinstance(parent, ast.With)
        and any("safe_globals" in program.source(item.context_expr) for item in parent.items)
        for parent in program.ancestors(call)
    )


def _is_saved_whole(program: Program, call: ast.Call) -> bool:
    """Return whether the program saves whole objects.

    If it saves the file that the call loads, only these saves count.
    """
    saves = program.calls.get("torch.save", [])
    path = program.source(call.args[0]) if call.args else ""
    same = [each for each in saves if len(each.args) > 1 and program.source(each.args[1]) == path]
    return any(_saves_module(program, each) for each in same or saves)


def _saves_module(program: Program, call: ast.Call) -> bool:
    """Return whether a call of `torch.save` writes a module or an optimizer, or a dict of them."""
    if not call.args:
        return False
    value = call.args[0]
    if isinstance(value, ast.Name):
        for binding in program.scopes.bindings(value):
            if isinstance(binding.value, ast.Dict) and not binding.path:
                value = binding.value
    values = value.values if isinstance(value, ast.Dict) else [value]
    return any(_is_whole(program, each) or _is_inner(program, each) for each in values)


def _is_used_whole(program: Program, call: ast.Call) -> bool:
    """Return whether the program uses what it loads as a module, or as an array."""
    parent = program.parents[call]
    if isinstance(parent, ast.Attribute):
        return parent.attr in OF_MODULES
    if not isinstance(parent, ast.Assign):
        return False
    target = parent.targets[0]
    if isinstance(target, (ast.Name, ast.Attribute)) and _is_whole(program, target, Kind.MODULE):
        return True
    return isinstance(target, ast.Name) and any(
        isinstance(node, ast.Name) and node.id == target.id
        for array in program.calls.get("torch.from_numpy", [])
        for node in ast.walk(array)
    )


def _is_inner(program: Program, node: ast.expr) -> bool:
    """Return whether an expression is the module inside a wrapper, perhaps on a condition."""
    if isinstance(node, ast.IfExp):
        return _is_inner(program, node.body) or _is_inner(program, node.orelse)
    is_module = isinstance(node, ast.Attribute) and node.attr == "module"
    return is_module and _is_whole(program, node.value, Kind.MODULE)  # type: ignore[attr-defined]


def _is_whole(program: Program, node: ast.expr, kinds: Kind = _WHOLE) -> bool:
    """Return whether an expression may be a module or an optimizer.

    An attribute may be what its class assigns anywhere. A parameter is what all calls in this file
    pass for it.
    """
    possible = program.kinds.possible
    if possible(node) & kinds:
        return True
    if isinstance(node, ast.Attribute):
        return any(
            bool(binding.value and possible(binding.value) & kinds and not binding.path)
            for binding in program.scopes.attributes.get(node.attr, ())
            if _class_of(program, binding.node) is _class_of(program, node)
        )
    passed = passed_values(program, node) if isinstance(node, ast.Name) else []
    return bool(passed) and all(possible(each) & kinds for each in passed)


def _class_of(program: Program, node: ast.AST) -> ast.ClassDef | None:
    """Return the innermost class around a node."""
    return next((each for each in program.ancestors(node) if isinstance(each, ast.ClassDef)), None)


RULE = Rule(
    code="ARC117",
    name="load-without-weights-only",
    happens="The default of `weights_only` changed from False to True. A file that holds a whole "
    "model or other objects raises UnpicklingError; before, any file could run code. Reported in "
    "code for older versions, and where the file itself saves whole objects.",
    since="PyTorch 2.6.0",
    cure="Save and load a `state_dict`, and pass `weights_only=True`.",
    source=V2_6,
    fires=(
        'import torch\n\nmodel = torch.nn.Linear(2, 2)\ntorch.save(model, "model.pt")\n'
        'model = torch.load("model.pt")\n'
    ),
    silent=(
        "import torch\n\nmodel = torch.nn.Linear(2, 2)\n"
        'torch.save(model.state_dict(), "model.pt")\n'
        'model.load_state_dict(torch.load("model.pt"))\n'
    ),
    fixed=(
        'import torch\n\nmodel = torch.nn.Linear(2, 2)\ntorch.save(model, "model.pt")\n'
        'model = torch.load("model.pt", weights_only=False)\n'
    ),
    find=find,
)
