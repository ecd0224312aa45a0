"""ARC115 and ARC116: schedulers of the learning rate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import constant, keyword, remove_argument
from ..rule import Rule
from .sources import V1_1, V2_7

_SCHEDULERS = "torch.optim.lr_scheduler."


def find_order(program: Program) -> Iterator[Hit]:
    """Find a scheduler's step at the start of an epoch, before the optimizer's steps."""
    for call in program.method_calls.get("step", []):
        assert isinstance(call.func, ast.Attribute)
        name = call.func.value
        statement = program.statement(call)
        if call.args or not isinstance(name, ast.Name) or not _is_scheduler(program, name):
            continue
        loop = program.parents[statement]
        if not isinstance(loop, ast.For) or statement not in loop.body:
            continue
        position = loop.body.index(statement)
        before = any(_trains(each) for each in loop.body[:position])
        after = any(_trains(each) for each in loop.body[position + 1 :])
        if after and not before:
            yield Hit(
                program.start(call),
                program.end(call),
                "since PyTorch 1.1 a scheduler's step before the optimizer's skips the first "
                "learning rate; call it at the end of the epoch",
            )


def _is_scheduler(program: Program, name: ast.Name) -> bool:
    return any(
        isinstance(each.value, ast.Call)
        and (program.names.dotted(each.value.func) or "").startswith(_SCHEDULERS)
        for each in program.scopes.bindings(name)
    )


def _trains(statement: ast.stmt) -> bool:
    """Return whether a statement steps an optimizer, or calls a function named for training."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            function = node.func
            word = (
                function.attr
                if isinstance(function, ast.Attribute)
                else getattr(function, "id", "")
            )
            if word.startswith("train") and node.args:
                return True
            if word == "step" and "optim" in ast.unparse(function).lower():
                return True
    return False


def find_verbose(program: Program) -> Iterator[Hit]:
    """Find schedulers with `verbose=`."""
    for name, calls in program.calls.items():
        if not name.startswith(_SCHEDULERS):
            continue
        for call in calls:
            verbose = keyword(call, "verbose")
            if verbose is None:
                continue
            edit = remove_argument(program, call, verbose)
            is_off = constant(verbose.value) is False
            yield Hit(
                program.start(verbose),
                program.end(verbose),
                "schedulers have no argument `verbose` any more, so this raises TypeError; print "
                "`scheduler.get_last_lr()`",
                Fix((edit,), is_safe=is_off),
            )


ORDER = Rule(
    code="ARC115",
    name="scheduler-first",
    happens="A scheduler that steps before the optimizer skips the first value of the learning "
    "rate. The code runs, with a warning, and trains differently from before 1.1.",
    since="PyTorch 1.1.0",
    cure="Call `scheduler.step()` after the optimizer's steps of the epoch.",
    source=V1_1,
    fires=(
        "import torch\n\n\ndef main(model, optimizer, train):\n"
        "    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)\n"
        "    for epoch in range(90):\n        scheduler.step()\n        train(model, optimizer)\n"
    ),
    silent=(
        "import torch\n\n\ndef main(model, optimizer, train):\n"
        "    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)\n"
        "    for epoch in range(90):\n        train(model, optimizer)\n        scheduler.step()\n"
    ),
    find=find_order,
)
VERBOSE = Rule(
    code="ARC116",
    name="scheduler-verbose",
    happens="The argument is gone: TypeError.",
    since="PyTorch 2.7.0; deprecated since 2.2.0",
    cure="Leave it out, and print `scheduler.get_last_lr()`.",
    source=V2_7,
    fires=(
        "from torch.optim.lr_scheduler import ReduceLROnPlateau\n\n\ndef schedule(optimizer):\n"
        "    return ReduceLROnPlateau(optimizer, verbose=True)\n"
    ),
    silent=(
        "from torch.optim.lr_scheduler import ReduceLROnPlateau\n\n\ndef schedule(optimizer):\n"
        "    return ReduceLROnPlateau(optimizer)\n"
    ),
    fixed=(
        "from torch.optim.lr_scheduler import ReduceLROnPlateau\n\n\ndef schedule(optimizer):\n"
        "    return ReduceLROnPlateau(optimizer)\n"
    ),
    find=find_verbose,
)
