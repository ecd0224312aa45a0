"""ARC303: a distributed sampler that gives the same order in every epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import constant, has_stars, keyword
from ..rule import Rule
from .sources import page

_SAMPLER = "torch.utils.data.distributed.DistributedSampler"


_LOADER = "torch.utils.data.DataLoader"
_BATCHES = "torch.utils.data.BatchSampler"
# Functions that are given loaders, and do not call `set_epoch`.
_READERS = ("enumerate", "len", "iter", "zip", "print", "tqdm", "track")


def find(program: Program) -> Iterator[Hit]:
    """Find samplers in a program with an epoch loop and without `set_epoch`."""
    calls = program.calls.get(_SAMPLER, [])
    if not calls or any(node.attr == "set_epoch" for node in program.all(ast.Attribute)):
        return
    loops = [loop for loop in program.all(ast.For) if _is_epochs(program, loop)]
    if not loops:
        return
    for call in calls:
        shuffle = keyword(call, "shuffle")
        if has_stars(call) or (shuffle is not None and constant(shuffle.value) is not True):
            continue
        if _is_for_evaluation(program, call) or _is_passed_on(program, call):
            continue
        yield Hit(
            program.start(call),
            program.end(call),
            "without `sampler.set_epoch(epoch)`, every epoch has the order of the first; call it "
            "at "
            "the start of each epoch",
            _fix(program, call, loops),
        )


def _is_epochs(program: Program, loop: ast.For) -> bool:
    """Return whether a loop is over epochs, by its name or since it repeats a loader."""
    if not isinstance(loop.target, ast.Name):
        return False
    return "epoch" in loop.target.id.lower() or _repeats_a_loader(program, loop)


def _repeats_a_loader(program: Program, loop: ast.For) -> bool:
    call = loop.iter
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return False
    if call.func.id != "range":
        return False
    loaders = {
        target.id
        for call in program.calls.get(_LOADER, [])
        if isinstance(statement := program.statement(call), ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    inner = [each for each in ast.walk(loop) if isinstance(each, ast.For) and each is not loop]
    names = (name for each in inner for name in ast.walk(each.iter) if isinstance(name, ast.Name))
    return any(name.id in loaders for name in names)


def _is_for_evaluation(program: Program, call: ast.Call) -> bool:
    text = program.source(program.statement(call)).lower()
    return any(word in text for word in ("val", "test", "eval"))


def _is_passed_on(program: Program, call: ast.Call) -> bool:
    """Return whether another function gets the sampler or its loader, and may call `set_epoch`."""
    statement = program.statement(call)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name, scope = statement.targets[0].id, program.scopes.scope(call)
    for node in program.all(ast.Name):
        parent = program.parents[node]
        if isinstance(parent, ast.keyword):
            parent = program.parents[parent]
        is_argument = isinstance(parent, ast.Call) and parent.func is not node
        if node.id != name or not is_argument or program.scopes.scope(node) is not scope:
            continue
        assert isinstance(parent, ast.Call)
        function = parent.func
        called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if program.names.dotted(function) not in (_LOADER, _BATCHES) and called not in _READERS:
            return True
    return False


def _fix(program: Program, call: ast.Call, loops: list[ast.For]) -> Fix | None:
    statement = program.statement(call)
    if len(loops) != 1 or not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    target, loop = statement.targets[0], loops[0]
    if not isinstance(target, ast.Name) or not isinstance(loop.target, ast.Name):
        return None
    scope = program.scopes.scope(target)
    if scope not in (program.scopes.scope(loop), program.tree):
        return None
    first = loop.body[0]
    start = program.start(first)
    line = program.line_start(first.lineno)
    indent = program.text[line:start]
    if indent.strip() or not isinstance(program.parents[statement], type(scope)):
        return None
    text = f"{target.id}.set_epoch({loop.target.id}){program.newline}{indent}"
    return Fix((Edit(start, start, text),), is_safe=False)


RULE = Rule(
    code="ARC303",
    name="sampler-without-set-epoch",
    happens="`DistributedSampler` shuffles by its seed and its epoch. Without `set_epoch` the "
    "epoch stays 0: each rank sees the same samples in the same order in every epoch.",
    since=None,
    cure="Call `sampler.set_epoch(epoch)` before each epoch, or use `anyrig.distribute(loader)`.",
    source=page("data.html"),
    fires=(
        "from torch.utils.data import DataLoader, DistributedSampler\n\n\ndef main(data, train):\n"
        "    sampler = DistributedSampler(data)\n    loader = DataLoader(data, sampler=sampler)\n"
        "    for epoch in range(3):\n        train(loader)\n"
    ),
    silent=(
        "from torch.utils.data import DataLoader, DistributedSampler\n\n\ndef main(data, train):\n"
        "    sampler = DistributedSampler(data)\n    loader = DataLoader(data, sampler=sampler)\n"
        "    for epoch in range(3):\n        sampler.set_epoch(epoch)\n        train(loader)\n"
    ),
    fixed=(
        "from torch.utils.data import DataLoader, DistributedSampler\n\n\ndef main(data, train):\n"
        "    sampler = DistributedSampler(data)\n    loader = DataLoader(data, sampler=sampler)\n"
        "    for epoch in range(3):\n        sampler.set_epoch(epoch)\n        train(loader)\n"
    ),
    find=find,
    is_about_versions=False,
)
