"""ARC007: imports of Python 2, which looked in the package first."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..program import Program
from ..rule import Rule
from .sources import PYTHON_3

# Packages for which modules that adapt to them are named.
_OTHERS = {"torch", "torchvision", "torchaudio", "numpy", "scipy", "tensorflow", "keras", "jax"}
_NOT_SIBLINGS = _OTHERS | sys.stdlib_module_names
_BEFORE_THE_NAME = re.compile(r"from[\s\\]+")


def find(program: Program) -> Iterator[Hit]:
    """Find imports from a module of the same package by its bare name, in an ``__init__.py``.

    Other files may be scripts, whose folder Python 3 searches, too.
    """
    if "sys.path" in program.text:
        return
    for node in program.all(ast.ImportFrom):
        name = (node.module or "").split(".")[0]
        if node.level or name not in program.siblings or name in _NOT_SIBLINGS:
            continue
        if any(isinstance(parent, (ast.Try, ast.If)) for parent in program.ancestors(node)):
            continue  # for both versions of Python
        start, end = program.start(node), program.end(node)
        before = _BEFORE_THE_NAME.match(program.text, start)
        assert before is not None
        yield Hit(
            start,
            end,
            f"Python 3 looks for `{name}` outside this package, so this raises "
            f"ModuleNotFoundError; write `from .{node.module}`",
            Fix((Edit(before.end(), before.end(), "."),), is_safe=False),
        )


RULE = Rule(
    code="ARC007",
    name="python2-import",
    happens="An import looks for a module outside the package, unless a dot says otherwise: "
    "ModuleNotFoundError. Reported in an `__init__.py` that has the module beside it, such as "
    "`resnet.py`.",
    since="Python 3.0",
    cure="Write `from .resnet import …`.",
    source=PYTHON_3,
    fires="from resnet import *\n",
    silent="from .resnet import *\n",
    fixed="from .resnet import *\n",
    find=find,
)
