"""ARC204 and ARC205: CUDA_VISIBLE_DEVICES, set too late or misspelt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from difflib import SequenceMatcher

from ..edit import Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import constant, keyword, replace
from ..rule import Rule
from .sources import page, thread

_NAME = "CUDA_VISIBLE_DEVICES"
_SIMILAR = 0.93
# `device_count` asks NVML; `empty_cache` and `memory_allocated` do nothing before CUDA starts.
_START = {
    *("current_device", "get_device_capability", "get_device_name", "get_device_properties"),
    *("init", "is_available", "mem_get_info", "set_device", "synchronize"),
    *("Stream", "current_stream"),
}


def find_late(program: Program) -> Iterator[Hit]:
    """Find assignments of the variable after a line that starts CUDA."""
    for statement in _assignments(program):
        start = _started_before(program, statement)
        if start is not None:
            line = start.lineno
            yield Hit(
                program.start(statement),
                program.end(statement),
                f"CUDA reads {_NAME} when it starts, which line {line} "
                f"(`{program.source(start)[:40]}`) makes it do: this has no effect; move it before "
                "`import torch`",
            )


def _assignments(program: Program) -> Iterator[ast.stmt]:
    for node in program.all(ast.Assign):
        target = node.targets[0]
        if (
            isinstance(target, ast.Subscript)
            and constant(target.slice) == _NAME
            and program.names.dotted(target.value) == "os.environ"
        ):
            yield node
    for name in ("os.environ.setdefault", "os.putenv"):
        for call in program.calls.get(name, []):
            if call.args and constant(call.args[0]) == _NAME:
                yield program.statement(call)


def _started_before(program: Program, statement: ast.stmt) -> ast.Call | None:
    """Return the first call that starts CUDA before a statement, in its function or outside all."""
    function = program.function(statement)
    found = [
        call
        for call in program.all(ast.Call)
        if call.lineno < statement.lineno
        and program.function(call) in (None, function)
        and _starts_cuda(program, call)
        and not _is_elsewhere(program, call, statement)
    ]
    return min(found, key=lambda call: call.lineno, default=None)


def _is_elsewhere(program: Program, call: ast.Call, statement: ast.stmt) -> bool:
    """Return whether the call is in another branch, in a lambda, or in a class."""
    around = set(program.ancestors(statement))
    for parent in program.ancestors(call):
        if isinstance(parent, (ast.Lambda, ast.ClassDef)):
            return True
        if isinstance(parent, ast.If) and parent in around:
            body = {each for part in parent.body for each in ast.walk(part)}
            return (call in body) is not (statement in body)
    return False


def _starts_cuda(program: Program, call: ast.Call) -> bool:
    name = program.names.dotted(call.func)
    if name is not None:
        if name.startswith("torch.cuda.") and name.removeprefix("torch.cuda.") in _START:
            return True
        if not name.startswith("torch.") or name == "torch.device":
            return False
        device = keyword(call, "device")
        return device is not None and str(constant(device.value)).startswith("cuda")
    if not isinstance(call.func, ast.Attribute):
        return False
    is_to = call.func.attr == "to" and bool(call.args)
    is_cuda = is_to and str(constant(call.args[0])).startswith("cuda")
    return is_cuda or (call.func.attr == "cuda" and len(call.args) < 2)


def find_misspelt(program: Program) -> Iterator[Hit]:
    """Find strings that are nearly the variable's name."""
    for node in program.all(ast.Constant):
        text = node.value
        if not isinstance(text, str) or text == _NAME or not text.isupper():
            continue
        if abs(len(text) - len(_NAME)) > 2 or "VIS" not in text:
            continue
        if SequenceMatcher(None, text, _NAME).ratio() >= _SIMILAR:
            quote = program.source(node)[-1]
            yield Hit(
                program.start(node),
                program.end(node),
                f"nothing reads {text}; the variable is {_NAME}",
                Fix((replace(program, node, f"{quote}{_NAME}{quote}"),), is_safe=False),
            )


LATE = Rule(
    code="ARC204",
    name="visible-devices-too-late",
    happens="CUDA reads CUDA_VISIBLE_DEVICES once, when it starts. Set later, it has no effect, "
    "and the program runs on the wrong GPUs. `torch.cuda.is_available()` starts CUDA's driver, "
    "too; `device_count()` does not since PyTorch 1.13 (on NVIDIA GPUs).",
    since=None,
    cure="Set it in the shell or before `import torch`, or run `anyrig run --device 1 script.py`.",
    source=f"{thread(23544)} and {thread(122815)}",
    fires=(
        "import os\n\nimport torch\n\nprint(torch.cuda.is_available())\n"
        'os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n'
    ),
    silent=(
        'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "1"\n\nimport torch\n\n'
        "print(torch.cuda.is_available())\n"
    ),
    find=find_late,
    is_about_versions=False,
)
MISSPELT = Rule(
    code="ARC205",
    name="visible-devices-misspelt",
    happens="Nothing reads a variable of this name, so the program uses all GPUs.",
    since=None,
    cure="Write CUDA_VISIBLE_DEVICES.",
    source=page("notes/cuda.html"),
    fires='import os\n\nos.environ["CUDA_VISIBLE_DEVICE"] = "1"\n',
    silent='import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "1"\n',
    fixed='import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "1"\n',
    find=find_misspelt,
    is_about_versions=False,
)
