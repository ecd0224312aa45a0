"""ARC001 to ARC003: what only Python 2 parses. `python2.find_repairs` finds it."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Hit
from ..program import Program
from ..rule import Rule
from .sources import PYTHON_3, PYTHON_3_7, PYTHON_3_14


def _nothing(program: Program) -> Iterator[Hit]:
    """Find nothing: a program that parses as Python 3 has no such statement."""
    return iter(())


PRINT = Rule(
    code="ARC001",
    name="print-statement",
    happens="The file is Python 2: it does not parse, and nothing of it runs.",
    since="Python 3.0",
    cure="Call `print` as a function.",
    source=PYTHON_3,
    fires='print "loss", 0.5\n',
    silent='print("loss", 0.5)\n',
    fixed='print("loss", 0.5)\n',
    find=_nothing,
)
ASYNC = Rule(
    code="ARC002",
    name="async-argument",
    happens="`async` is a keyword of Python, so the file does not parse. PyTorch renamed the "
    "argument of `cuda()` and `copy_()` to `non_blocking`.",
    since="Python 3.7; PyTorch 0.4.0 has the new name",
    cure="Write `non_blocking=`.",
    source=PYTHON_3_7,
    fires="def move(x):\n    return x.cuda(async=True)\n",
    silent="def move(x):\n    return x.cuda(non_blocking=True)\n",
    fixed="def move(x):\n    return x.cuda(non_blocking=True)\n",
    find=_nothing,
)
PYTHON_2 = Rule(
    code="ARC003",
    name="python2-syntax",
    happens="The file is Python 2: it does not parse, and nothing of it runs. Among the places are "
    "`except E, e`, `raise E, text`, `exec code`, `<>`, backticks, `0777` and `10L`. Python 3.14 "
    "parses `except E, e` again, but as two classes of exceptions.",
    since="Python 3.0",
    cure="Write it as Python 3 does.",
    source=f"{PYTHON_3} and {PYTHON_3_14}",
    fires='raise ValueError, "too long"\n',
    silent='raise ValueError("too long")\n',
    fixed='raise ValueError("too long")\n',
    find=_nothing,
)
