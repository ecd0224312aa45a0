"""ARC301 and ARC302: what a training step keeps, and what makes it wait."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import insert_after
from ..rule import Rule
from ..tree import Loop
from .sources import GUIDE_0_4, page


def find_sums(program: Program) -> Iterator[Hit]:
    """Find a loss with its graph that is added to a total in a loop that trains."""
    for node in program.all(ast.AugAssign):
        loop = next(program.loops(node), None)
        if (
            not isinstance(node.op, ast.Add)
            or loop is None
            or not isinstance(node.target, ast.Name)
        ):
            continue
        kind = program.kinds.of(node.value)
        if Kind.LOSS not in kind or Kind.TENSOR not in kind:
            continue
        scope = program.scopes.scope(node)
        if (scope, node.target.id) in program.kinds.losses or _is_reset(program, node, loop):
            continue
        if not _is_followed_by_number(program, node.target) or not _backpropagates(loop):
            continue
        is_number = not _has_attribute(program, node.target)
        value = node.value
        simple = isinstance(value, (ast.Name, ast.Call, ast.Attribute, ast.Subscript))
        suffix = ".item()" if is_number else ".detach()"
        yield Hit(
            program.start(node),
            program.end(node),
            f"`{node.target.id}` keeps the graph of every step's loss; write "
            f"`{program.source(value)[:40]}{suffix}`",
            Fix((insert_after(program, value, suffix),), is_safe=not is_number) if simple else None,
        )


def _is_reset(program: Program, node: ast.AugAssign, loop: Loop) -> bool:
    """Return whether the total starts again in each iteration of the loop."""
    assert isinstance(node.target, ast.Name)
    return any(
        each.how == "assign" and loop in program.ancestors(each.node)
        for each in program.scopes.bindings(node.target)
    )


def _is_followed_by_number(program: Program, target: ast.Name) -> bool:
    """Return whether the total began as a number."""
    return any(
        each.how == "assign" and Kind.NUMBER in program.kinds.of(each.value)
        for each in program.scopes.bindings(target)
    )


def _backpropagates(loop: Loop) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        for node in ast.walk(loop)
    )


def _has_attribute(program: Program, target: ast.Name) -> bool:
    """Return whether the program uses the total as a tensor."""
    scope = program.scopes.scope(target)
    return any(
        node.id == target.id
        and isinstance(program.parents[node], (ast.Attribute, ast.Return, ast.Call))
        and program.scopes.scope(node) is scope
        for node in program.all(ast.Name)
    )


def find_waits(program: Program) -> Iterator[Hit]:
    """Find two or more reads of a tensor's value in every training step."""
    loops: list[ast.For | ast.While] = [*program.all(ast.For), *program.all(ast.While)]
    for loop in loops:
        if not _is_step(loop):
            continue
        reads = [*_reads(program, loop)]
        if len(reads) > 1:
            first, rest = reads[0], reads[1:]
            places = ", ".join(str(program.position(program.start(each))[0]) for each in rest)
            yield Hit(
                program.start(first),
                program.end(first),
                f"each step waits for the device {len(reads)} times: here and in line {places}; "
                "keep sums as detached tensors, and read them every few steps",
            )


def _is_step(loop: ast.For | ast.While) -> bool:
    """Return whether the loop itself, and not a loop inside it, calls `backward()`."""
    stack: list[ast.AST] = list(loop.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr == "backward":
            return True
        stack += ast.iter_child_nodes(node)
    return False


def _reads(program: Program, loop: ast.For | ast.While) -> Iterator[ast.Call]:
    """Yield the calls that read a tensor's value in every iteration of a loop, in order."""
    found = []
    stack: list[ast.AST] = list(loop.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.If, ast.For, ast.While, ast.FunctionDef, ast.Lambda, ast.IfExp)):
            continue
        if isinstance(node, ast.Call) and _waits(program, node):
            found.append(node)
            continue
        stack += ast.iter_child_nodes(node)
    return iter(sorted(found, key=program.start))


def _waits(program: Program, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("item", "tolist"):
        kind = program.kinds.of(call.func.value)
        return bool(kind & (Kind.LOSS | Kind.TENSOR))
    if isinstance(call.func, ast.Name) and call.func.id in ("print", "float"):
        return any(Kind.TENSOR in program.kinds.of(each) for each in call.args)
    return False


SUMS = Rule(
    code="ARC301",
    name="sum-of-losses",
    happens="`total += loss` adds tensors with their graphs: the total refers to the graph of "
    "every step, and memory grows until the epoch ends.",
    since=None,
    cure="Write `total += loss.item()`, or `loss.detach()` to avoid waiting for the GPU.",
    source=GUIDE_0_4,
    fires=(
        "import torch.nn.functional as F\n\n\ndef train(model, loader):\n    total = 0\n"
        "    for x, y in loader:\n        loss = F.mse_loss(model(x), y)\n        loss.backward()\n"
        "        total += loss\n    print(total)\n"
    ),
    silent=(
        "import torch.nn.functional as F\n\n\ndef train(model, loader):\n    total = 0\n"
        "    for x, y in loader:\n        loss = F.mse_loss(model(x), y)\n        loss.backward()\n"
        "        total += loss.detach()\n    print(total)\n"
    ),
    fixed=(
        "import torch.nn.functional as F\n\n\ndef train(model, loader):\n    total = 0\n"
        "    for x, y in loader:\n        loss = F.mse_loss(model(x), y)\n        loss.backward()\n"
        "        total += loss.detach()\n    print(total)\n"
    ),
    find=find_sums,
    is_about_versions=False,
)
WAITS = Rule(
    code="ARC302",
    name="waits-in-every-step",
    happens="`.item()`, `float(tensor)` and `print(tensor)` wait until the device has computed the "
    "value. Several in each step leave the GPU idle in between. Reported from the second on, "
    "unless "
    "a condition makes them rare.",
    since=None,
    cure="Add up detached tensors, and read them every few steps; or use `anyrig.copy_to_host`.",
    source=page("notes/cuda.html"),
    fires=(
        "import torch.nn.functional as F\n\n\ndef train(model, loader):\n    for x, y in loader:\n"
        "        loss = F.mse_loss(model(x), y)\n        loss.backward()\n"
        "        print(loss)\n        total = loss.item()\n"
    ),
    silent=(
        "import torch.nn.functional as F\n\n\ndef train(model, loader):\n"
        "    for step, (x, y) in enumerate(loader):\n        loss = F.mse_loss(model(x), y)\n"
        "        loss.backward()\n        if step % 100 == 0:\n            print(loss.item())\n"
        "            total = loss.item()\n"
    ),
    find=find_waits,
    is_about_versions=False,
)
