"""ARC206 and ARC207: statements about devices that change nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import replace
from ..rule import Rule
from .sources import page

# Context managers and constructors -> the function that was probably meant.
_ALONE = {
    "torch.cuda.device": "torch.cuda.set_device",
    "torch.accelerator.device_index": "torch.accelerator.set_device_index",
    "torch.device": "torch.set_default_device",
    "torch.cuda.stream": "torch.cuda.set_stream",
    "torch.no_grad": None,
    "torch.enable_grad": None,
    "torch.inference_mode": None,
    "torch.autocast": None,
    "torch.cuda.amp.autocast": None,
}
_MOVES = ("cuda", "to", "cpu", "half", "xpu", "contiguous", "detach", "float", "double")


def find_alone(program: Program) -> Iterator[Hit]:
    """Find a context manager that no `with` enters."""
    for statement in program.all(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call):
            continue
        name = program.names.dotted(call.func) or ""
        if name not in _ALONE:
            continue
        meant = _ALONE[name]
        fix = None
        if meant is not None and isinstance(call.func, ast.Attribute) and name != "torch.device":
            new = f"{program.source(call.func.value)}.{meant.rpartition('.')[2]}"
            fix = Fix((replace(program, call.func, new),), is_safe=False)
        advice = f"use it in a `with`, or call `{meant}`" if meant else "use it in a `with`"
        yield Hit(
            program.start(call),
            program.end(call),
            f"`{name}` alone on a line has no effect; {advice}",
            fix,
        )


def find_dropped(program: Program) -> Iterator[Hit]:
    """Find a moved tensor that nothing keeps."""
    for statement in program.all(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr not in _MOVES:
            continue
        value = call.func.value
        kind = program.kinds.of(value)
        if Kind.TENSOR not in kind or Kind.MODULE in kind or isinstance(value, ast.Call):
            continue
        start = program.start(statement)
        text = program.source(value)
        yield Hit(
            start,
            program.end(statement),
            f"`{call.func.attr}()` leaves the tensor as it is, and its result is dropped; write "
            f"`{text} = {text}.{call.func.attr}(…)`",
            Fix((Edit(start, start, f"{text} = "),), is_safe=False),
        )


ALONE = Rule(
    code="ARC206",
    name="device-statement-without-effect",
    happens="`torch.cuda.device(0)` and `torch.accelerator.device_index(rank)` are context "
    "managers: alone on a line they select nothing, and every rank stays on its current GPU, "
    "normally GPU 0.",
    since=None,
    cure="Use them in a `with` statement, or call `set_device` or `set_device_index`.",
    source=page("accelerator.html"),
    fires="import torch\n\n\ndef setup(rank):\n    torch.accelerator.device_index(rank)\n",
    silent="import torch\n\n\ndef setup(rank):\n    torch.accelerator.set_device_index(rank)\n",
    fixed="import torch\n\n\ndef setup(rank):\n    torch.accelerator.set_device_index(rank)\n",
    find=find_alone,
    is_about_versions=False,
)
DROPPED = Rule(
    code="ARC207",
    name="moved-tensor-dropped",
    happens="`x.to(device)` returns the moved tensor and leaves `x` where it is. Only modules "
    "move in place.",
    since=None,
    cure="Write `x = x.to(device)`.",
    source=page("generated/torch.Tensor.to.html"),
    fires=(
        "import torch\n\n\ndef f(device):\n    x = torch.ones(3)\n    x.to(device)\n    return x\n"
    ),
    silent=(
        "import torch\n\n\ndef f(device):\n    x = torch.nn.Linear(3, 3)\n    x.to(device)\n"
        "    return x\n"
    ),
    fixed=(
        "import torch\n\n\ndef f(device):\n    x = torch.ones(3)\n    x = x.to(device)\n"
        "    return x\n"
    ),
    find=find_dropped,
    is_about_versions=False,
)
