"""ARC105: resampling whose result depends on the version of PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import add_argument, constant, has_stars, keyword
from ..rule import Rule
from .sources import V0_4, page

_RESIZE = ("torch.nn.functional.interpolate", "torch.nn.functional.upsample", "torch.nn.Upsample")
_LINEAR = ("linear", "bilinear", "bicubic", "trilinear")
_PLACE_OF_MODE = {"torch.nn.Upsample": 2}
_SAMPLERS = ("torch.nn.functional.grid_sample", "torch.nn.functional.affine_grid")
_PLACE_OF_CORNERS = {_SAMPLERS[0]: 4, _SAMPLERS[1]: 2, "torch.nn.Upsample": 3}


def find(program: Program) -> Iterator[Hit]:
    """Find calls that leave `align_corners` to the default, which changed."""
    for name in (*_RESIZE, *_SAMPLERS):
        is_sampler = name in _SAMPLERS
        if not (is_sampler or program.is_old):
            continue  # in code for PyTorch 0.4 and later, the default is what the author saw
        for call in program.calls.get(name, []):
            if keyword(call, "align_corners") or has_stars(call):
                continue
            if len(call.args) > _PLACE_OF_CORNERS.get(name, 4):
                continue
            if not is_sampler and _mode(name, call) not in _LINEAR:
                continue
            what, version = ("", "1.4") if is_sampler else (" of linear resampling", "0.4")
            edit = add_argument(program, call, "align_corners=True")
            yield Hit(
                program.start(call),
                program.end(call),
                f"the default of `align_corners`{what} changed from True to False in PyTorch "
                f"{version}, which gives different values; pass the one that the weights were "
                "trained with",
                None if edit is None else Fix((edit,), is_safe=False),
            )


def _mode(name: str, call: ast.Call) -> object:
    given = keyword(call, "mode")
    if given is not None:
        return constant(given.value)
    place = _PLACE_OF_MODE.get(name, 3)
    return constant(call.args[place]) if len(call.args) > place else "nearest"


RULE = Rule(
    code="ARC105",
    name="align-corners",
    happens="Linear resampling without `align_corners` gives different values from before: the "
    "default changed from True to False. The code runs; `grid_sample` and `affine_grid` warn. For "
    "`interpolate` and `Upsample`, reported only in code for older versions. PyTorch's warning for "
    "`grid_sample` names 1.3, but 1.3.1 still takes True.",
    since="PyTorch 0.4.0 (`Upsample`, `upsample`), 1.4.0 (`grid_sample`, `affine_grid`)",
    cure="Pass `align_corners=True` for weights that were trained before, and otherwise False.",
    source=f"{V0_4} and {page('generated/torch.nn.functional.grid_sample.html')}",
    fires=(
        "import torch.nn.functional as F\n\n\ndef warp(x, grid):\n"
        "    return F.grid_sample(x, grid)\n"
    ),
    silent=(
        "import torch.nn.functional as F\n\n\ndef warp(x, grid):\n"
        "    return F.grid_sample(x, grid, align_corners=False)\n"
    ),
    fixed=(
        "import torch.nn.functional as F\n\n\ndef warp(x, grid):\n"
        "    return F.grid_sample(x, grid, align_corners=True)\n"
    ),
    find=find,
)
