"""ARC201 and ARC202: code that runs on one kind of device, or on one device, only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..guarded import is_guarded
from ..program import Program
from ..rewrite import constant, keyword
from ..rule import Rule
from .sources import page

_NUMBERED = re.compile(r"cuda:\d+")
_CHOICE = 'torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")'


def find_cuda(program: Program) -> Iterator[Hit]:
    """Find `.cuda()` that nothing makes conditional."""
    for call in program.method_calls.get("cuda", []):
        assert isinstance(call.func, ast.Attribute)
        if program.names.dotted(call.func) is not None or is_guarded(program, call):
            continue
        if call.args and constant(call.args[0]) is ...:
            continue  # the device is chosen elsewhere
        yield Hit(
            program.end(call.func.value),
            program.end(call),
            "`.cuda()` fails wherever there is no NVIDIA or AMD GPU; write `.to(device)` with a "
            "device that is chosen once",
            _to_device(program, call),
        )


def _to_device(program: Program, call: ast.Call) -> Fix | None:
    function = call.func
    assert isinstance(function, ast.Attribute)
    if call.args:
        return None
    if not _binds_device(program):
        definition = _definition(program)
        if definition is None:
            return None
        edits: tuple[Edit, ...] = (definition,)
    elif _is_module_device(program):
        edits = ()
    else:
        return None
    name = Edit(program.end(function) - len("cuda"), program.end(function), "to")
    opening = program.end(function) + 1
    argument = Edit(opening, opening, "device, " if call.keywords else "device")
    return Fix((*edits, name, argument), is_safe=False)


def _binds_device(program: Program) -> bool:
    names = any(node.id == "device" for node in program.all(ast.Name))
    return names or any(node.arg == "device" for node in program.all(ast.arg))


def _is_module_device(program: Program) -> bool:
    """Return whether the module has a `device`, defined once and in no function."""
    found = program.scopes.of_scope(program.tree).get("device", [])
    has_other = any(node.arg == "device" for node in program.all(ast.arg))
    stores = [node for node in program.all(ast.Name) if _stores_device(node)]
    return len(found) == 1 and len(stores) == 1 and not has_other


def _stores_device(node: ast.Name) -> bool:
    return node.id == "device" and isinstance(node.ctx, ast.Store)


def _definition(program: Program) -> Edit | None:
    """Return the edit that defines `device` after the imports at the top."""
    torch, imports = program.import_torch()
    body = program.tree.body
    top = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    if imports or not top or torch != "torch":
        return None
    assert top[-1].end_lineno is not None
    place = program.line_start(top[-1].end_lineno + 1)
    newline = program.newline
    return Edit(place, place, f"{newline}device = {_CHOICE}{newline}")


def find_number(program: Program) -> Iterator[Hit]:
    """Find a device with its number in the text."""
    for node in program.all(ast.Constant):
        if not isinstance(node.value, str) or not _NUMBERED.fullmatch(node.value):
            continue
        if not _is_a_device(program, node) or is_guarded(program, node):
            continue
        yield Hit(
            program.start(node),
            program.end(node),
            f"`{node.value}` is one GPU of one machine; take the device from an argument, or the "
            "current one with `cuda`",
        )
    for call in program.calls.get("torch.nn.DataParallel", []):
        devices = keyword(call, "device_ids")
        value = devices.value if devices else call.args[1] if len(call.args) > 1 else None
        if not isinstance(value, (ast.List, ast.Tuple)) or len(value.elts) < 2:
            continue
        if not all(type(constant(each)) is int for each in value.elts):
            continue
        if is_guarded(program, call):
            continue
        yield Hit(
            program.start(value),
            program.end(value),
            f"`device_ids={program.source(value)}` needs just these GPUs; leave it out to use all "
            "that are visible",
        )


def _is_a_device(program: Program, node: ast.Constant) -> bool:
    """Return whether a string is passed to something that takes a device."""
    parent = program.parents[node]
    if isinstance(parent, ast.keyword):
        if parent.arg not in ("device", "map_location"):
            return False
        parent = program.parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    is_method = isinstance(parent.func, ast.Attribute) and parent.func.attr in ("to", "cuda")
    return is_method or (program.names.dotted(parent.func) or "").startswith("torch.")


CUDA = Rule(
    code="ARC201",
    name="hard-wired-cuda",
    happens="The code runs on CUDA only: without a GPU it raises an error, and another "
    "accelerator stays idle. Not reported behind a condition, a decorator or a name that mentions "
    "GPUs.",
    since=None,
    cure="Choose a device once, and write `.to(device)`; or use `anyrig.Rig.detect()`.",
    source=page("accelerator.html"),
    fires="import torch\n\nmodel = torch.nn.Linear(2, 2).cuda()\n",
    silent=(
        "import torch\n\nmodel = torch.nn.Linear(2, 2)\nif torch.cuda.is_available():\n"
        "    model = model.cuda()\n"
    ),
    fixed=f"import torch\n\ndevice = {_CHOICE}\n\nmodel = torch.nn.Linear(2, 2).to(device)\n",
    find=find_cuda,
    is_about_versions=False,
)
NUMBER = Rule(
    code="ARC202",
    name="hard-wired-number",
    happens="The code uses one GPU of the machine, whether or not it is free, and fails on "
    "machines with fewer. Not reported behind a condition, a decorator or a name that mentions "
    "GPUs.",
    since=None,
    cure="Take the device from an argument, write `cuda` for the current GPU, and choose GPUs with "
    "`anyrig run --device`.",
    source=page("notes/cuda.html"),
    fires='import torch\n\nx = torch.ones(3, device="cuda:1")\n',
    silent='import torch\n\nx = torch.ones(3, device="cuda")\n',
    find=find_number,
    is_about_versions=False,
)
