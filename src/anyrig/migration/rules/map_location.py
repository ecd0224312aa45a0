"""ARC208: checkpoints that go back to the GPU they came from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..guarded import is_guarded
from ..program import Program
from ..rewrite import add_argument, has_stars, keyword
from ..rule import Rule
from .sources import page


def find(program: Program) -> Iterator[Hit]:
    """Find `torch.load` without `map_location` in a program that uses CUDA."""
    calls = program.calls.get("torch.load", [])
    if not calls or not _uses_cuda(program):
        return
    for call in calls:
        if keyword(call, "map_location") or len(call.args) > 1 or has_stars(call):
            continue
        if is_guarded(program, call) or _saves_itself(program, call):
            continue
        edit = add_argument(program, call, 'map_location="cpu"')
        yield Hit(
            program.start(call),
            program.end(call),
            "without `map_location`, tensors that were saved on a GPU go to that GPU: this fails "
            "on a machine with fewer GPUs, and all ranks load to the same one",
            None if edit is None else Fix((edit,), is_safe=False),
        )


def _saves_itself(program: Program, call: ast.Call) -> bool:
    """Return whether the function around a call also saves, and so reads its own files."""
    function = program.function(call)
    saves = program.calls.get("torch.save", [])
    return function is not None and any(program.function(each) is function for each in saves)


def _uses_cuda(program: Program) -> bool:
    """Return whether the program moves something to CUDA, or wraps its model for several GPUs."""
    names = ("torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel")
    if any(program.calls.get(name) for name in names):
        return True
    return any(
        isinstance(call.func, ast.Attribute) and program.names.dotted(call.func) is None
        for call in program.method_calls.get("cuda", [])
    )


RULE = Rule(
    code="ARC208",
    name="load-without-map-location",
    happens="`torch.load` puts each tensor on the device that it was saved from. On a machine "
    "without this device it raises RuntimeError, and if all ranks load, all copies are on one GPU.",
    since=None,
    cure='Pass `map_location="cpu"`, and move the model afterwards.',
    source=page("generated/torch.load.html"),
    fires=(
        "import torch\n\n\ndef resume(model, path):\n    model.load_state_dict(torch.load(path))\n"
        "    return model.cuda()\n"
    ),
    silent=(
        "import torch\n\n\ndef resume(model, path):\n"
        '    model.load_state_dict(torch.load(path, map_location="cpu"))\n    return model\n'
    ),
    fixed=(
        "import torch\n\n\ndef resume(model, path):\n"
        '    model.load_state_dict(torch.load(path, map_location="cpu"))\n'
        "    return model.cuda()\n"
    ),
    find=find,
    is_about_versions=False,
)
