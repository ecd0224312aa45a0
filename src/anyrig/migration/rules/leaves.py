"""ARC304: writing into parameters while a graph is recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rule import Rule
from .sources import page

_HARMLESS = {"requires_grad_", "share_memory_", "detach_", "retain_grad_", "pin_memory_"}
_GUARDS = ("no_grad", "inference_mode", "set_grad_enabled")


def find(program: Program) -> Iterator[Hit]:
    """Find in-place changes of leaves outside `torch.no_grad()`."""
    for node in program.all(ast.AugAssign):
        if isinstance(node.target, (ast.Name, ast.Attribute)):
            load = node.target
            if Kind.LEAF in program.kinds.of(load) and _records(program, node):
                yield _hit(program, node, program.source(node.target))
    for name, calls in program.method_calls.items():
        if not name.endswith("_") or name.startswith("_") or name in _HARMLESS:
            continue
        for call in calls:
            assert isinstance(call.func, ast.Attribute)
            value = call.func.value
            if Kind.LEAF in program.kinds.of(value) and _records(program, call):
                yield _hit(program, call, program.source(value))


def _hit(program: Program, node: ast.AugAssign | ast.Call, name: str) -> Hit:
    return Hit(
        program.start(node),
        program.end(node),
        f"`{name[:40]}` is a leaf: if it requires a gradient, changing it in place raises "
        "RuntimeError unless this runs inside `with torch.no_grad():`",
    )


def _records(program: Program, node: ast.AST) -> bool:
    """Return whether the code around a node computes gradients, and no guard is seen."""
    scope = program.scopes.scope(node)
    is_training = any(
        program.scopes.scope(call) is scope for call in program.method_calls.get("backward", [])
    )
    return is_training and not _is_guarded(program, node)


def _is_guarded(program: Program, node: ast.AST) -> bool:
    """Return whether no graph is recorded here, or a caller may have seen to it."""
    for parent in program.ancestors(node):
        if isinstance(parent, ast.With):
            texts = [program.source(item.context_expr) for item in parent.items]
            if any(guard in text for text in texts for guard in _GUARDS):
                return True
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if parent.decorator_list or parent.name.startswith("_"):
                return True
            if "init" in parent.name or "reset" in parent.name:
                return True  # often called under a guard
        elif isinstance(parent, ast.Lambda):
            return True
    return any(
        program.calls.get(name) for name in ("torch.set_grad_enabled", "torch._C.set_grad_enabled")
    )


RULE = Rule(
    code="ARC304",
    name="leaf-changed-in-place",
    happens="RuntimeError: a leaf Variable that requires grad is being used in an in-place "
    "operation. Reported in functions that call `backward()`: elsewhere, a caller may have entered "
    "`no_grad`.",
    since=None,
    cure="Change parameters inside `with torch.no_grad():`.",
    source=page("notes/autograd.html"),
    fires=(
        "import torch\n\nw = torch.zeros(3, requires_grad=True)\n(w * 2).sum().backward()\n"
        "w -= 0.1 * w.grad\n"
    ),
    silent=(
        "import torch\n\nw = torch.zeros(3, requires_grad=True)\n(w * 2).sum().backward()\n"
        "with torch.no_grad():\n    w -= 0.1 * w.grad\n"
    ),
    find=find,
    is_about_versions=False,
)
