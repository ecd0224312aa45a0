"""ARC113: `softmax` without a dimension."""

from __future__ import annotations

from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import add_argument, has_stars, keyword
from ..rule import Rule
from .sources import V0_3

# Name -> how many arguments come before `dim`.
_FUNCTIONS = {
    **{f"torch.nn.functional.{name}": 1 for name in ("softmax", "log_softmax", "softmin")},
    **{f"torch.nn.{name}": 0 for name in ("Softmax", "LogSoftmax", "Softmin")},
}


def find(program: Program) -> Iterator[Hit]:
    """Find softmax functions and modules without `dim`."""
    for name, before in _FUNCTIONS.items():
        for call in program.calls.get(name, []):
            if keyword(call, "dim") or has_stars(call) or len(call.args) > before:
                continue
            edit = add_argument(program, call, "dim=1")
            yield Hit(
                program.start(call),
                program.end(call),
                "the dimension is guessed from the number of dimensions: 1 for two, or for four "
                "and more, otherwise 0; pass `dim=`",
                None if edit is None else Fix((edit,), is_safe=False),
            )


RULE = Rule(
    code="ARC113",
    name="softmax-without-dim",
    happens="PyTorch guesses the dimension, with a warning: 1 for tensors of two, or of four and "
    "more dimensions, otherwise 0. A batch of sequences is normalized over the batch.",
    since="PyTorch 0.3.0",
    cure="Pass `dim=`; `dim=1` for a batch of rows.",
    source=V0_3,
    fires="import torch.nn.functional as F\n\n\ndef head(x):\n    return F.log_softmax(x)\n",
    silent=(
        "import torch.nn.functional as F\n\n\ndef head(x):\n    return F.log_softmax(x, dim=1)\n"
    ),
    fixed="import torch.nn.functional as F\n\n\ndef head(x):\n    return F.log_softmax(x, dim=1)\n",
    find=find,
)
