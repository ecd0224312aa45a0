"""ARC109 and ARC110: names that PyTorch changed or removed."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..program import Program
from ..rewrite import replace
from ..rule import Rule
from .sources import V0_4, V2_0, page

_INIT = (
    *("constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal"),
    *("sparse", "uniform", "xavier_normal", "xavier_uniform"),
)

# Old name -> new name with the same arguments, and the version that deprecated the old one.
_DEPRECATED = {
    **{f"torch.nn.init.{name}": (f"torch.nn.init.{name}_", "0.4") for name in _INIT},
    "torch.nn.utils.clip_grad_norm": ("torch.nn.utils.clip_grad_norm_", "0.4"),
    "torch.nn.functional.upsample": ("torch.nn.functional.interpolate", "0.4.1"),
    "torch.nn.NLLLoss2d": ("torch.nn.NLLLoss", "0.4"),
    "torch.ger": ("torch.outer", "1.7"),
}

# Old name -> new name with the same arguments; the old name was removed.
_MOVED = {
    "torchvision.transforms.Scale": "torchvision.transforms.Resize",
    "torchvision.transforms.RandomSizedCrop": "torchvision.transforms.RandomResizedCrop",
    "torch.potrf": "torch.cholesky",
    "torch._six.string_classes": "(str, bytes)",
    "torch._six.int_classes": "int",
    "torch._six.inf": "torch.inf",
}

# Old name -> what to do instead; the arguments or the results differ.
_REMOVED = {
    "torch.gels": "torch.linalg.lstsq(A, B).solution, with A first",
    "torch.gesv": "torch.linalg.solve(A, B), with A first",
    "torch.solve": "torch.linalg.solve(A, B), with A first",
    "torch.lstsq": "torch.linalg.lstsq(A, B).solution, with A first",
    "torch.symeig": "torch.linalg.eigh, or torch.linalg.eigvalsh without vectors",
    "torch.eig": "torch.linalg.eig, whose results are complex",
    "torch.matrix_rank": "torch.linalg.matrix_rank",
    "torch.btrifact": "torch.linalg.lu_factor",
    "torch.btrisolve": "torch.linalg.lu_solve",
    "torch.potrs": "torch.cholesky_solve",
    "torch.potri": "torch.cholesky_inverse",
    "torch.pstrf": "torch.linalg.cholesky",
    "torch.trtrs": "torch.linalg.solve_triangular",
    "torch.rfft": "torch.fft.rfft2 and its neighbours, whose results are complex",
    "torch.irfft": "torch.fft.irfft2 and its neighbours, whose arguments are complex",
    "torch.legacy": "torch.nn",
    "torch.utils.ffi": "torch.utils.cpp_extension",
    "torch.utils.serialization.load_lua": "a conversion with an older version",
    "torch.nn.backends.thnn.backend": "torch.nn.functional",
}


def find_deprecated(program: Program) -> Iterator[Hit]:
    """Find names that still work, with a warning."""
    for start, end, name, node in _uses(program, _DEPRECATED):
        if name in _DEPRECATED:
            new, version = _DEPRECATED[name]
            yield Hit(
                start,
                end,
                f"`{_last(name)}` has been deprecated since PyTorch {version}; write "
                f"`{_last(new)}`",
                _rename(program, node, _last(name), _last(new)),
            )


def find_removed(program: Program) -> Iterator[Hit]:
    """Find names that were removed."""
    for start, end, name, node in _uses(program, _MOVED | _REMOVED):
        if name in _MOVED:
            new = _MOVED[name]
            is_same_module = name.rpartition(".")[0] == new.rpartition(".")[0]
            fix = _rename(program, node, _last(name), _last(new)) if is_same_module else None
            message = f"`{name}` is gone; write `{new}`"
            yield Hit(start, end, message, fix)
        elif name in _REMOVED:
            yield Hit(start, end, f"`{name}` is gone; use {_REMOVED[name]}")


def _uses(
    program: Program, wanted: Container[str]
) -> Iterator[tuple[int, int, str, ast.expr | ast.alias]]:
    """Yield the place, the full name and the node of each name that an import reaches."""
    for node, name in program.names.references.items():
        if name in wanted:
            assert isinstance(node, ast.expr)
            yield program.start(node), program.end(node), name, node
    for statement in program.all(ast.ImportFrom):
        module = statement.module or ""
        if statement.level == 0 and module.split(".")[0] in ("torch", "torchvision"):
            for alias in statement.names:
                yield program.start(alias), program.end(alias), f"{module}.{alias.name}", alias
            if module in _REMOVED:
                yield program.start(statement), program.end(statement), module, statement.names[0]


def _rename(program: Program, node: ast.expr | ast.alias, old: str, new: str) -> Fix | None:
    if isinstance(node, ast.Attribute):
        text = program.source(node.value) + f".{new}"
        return Fix((replace(program, node, text),), is_safe=True)
    if isinstance(node, ast.Name) and node.id == old and _is_imported_once(program, old):
        return Fix((replace(program, node, new),), is_safe=True)
    if isinstance(node, ast.alias) and node.asname is None:
        start = program.start(node)
        return Fix((Edit(start, program.end(node), new),), is_safe=True)
    return None


def _is_imported_once(program: Program, name: str) -> bool:
    return (
        sum(alias.name == name for each in program.all(ast.ImportFrom) for alias in each.names) == 1
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


DEPRECATED = Rule(
    code="ARC109",
    name="deprecated-name",
    happens="The old name still works, and warns: functions of `nn.init` without an underscore, "
    "`clip_grad_norm`, `upsample`, `NLLLoss2d`. `ger` does not warn, but PyTorch's documentation "
    "announces its removal.",
    since="PyTorch 0.4.0, 0.4.1 (`upsample`) or 1.7.0 (`ger`)",
    cure="Write the new name; the arguments are the same.",
    source=f"{V0_4} and {page('generated/torch.ger.html')}",
    fires="from torch import nn\n\nnn.init.xavier_uniform(nn.Linear(2, 2).weight)\n",
    silent="from torch import nn\n\nnn.init.xavier_uniform_(nn.Linear(2, 2).weight)\n",
    fixed="from torch import nn\n\nnn.init.xavier_uniform_(nn.Linear(2, 2).weight)\n",
    find=find_deprecated,
)
REMOVED = Rule(
    code="ARC110",
    name="removed-name",
    happens="The name is no longer there, or only raises RuntimeError: AttributeError or "
    "ImportError when the line is reached.",
    since="PyTorch 1.0.0 to 2.0.0; torchvision 0.12.0 for `Scale` and `RandomSizedCrop`",
    cure="Write the name that the finding gives. If the arguments differ, see its documentation.",
    source=f"{V2_0} and {page('linalg.html')}",
    fires="from torchvision import transforms\n\nresize = transforms.Scale(32)\n",
    silent="from torchvision import transforms\n\nresize = transforms.Resize(32)\n",
    fixed="from torchvision import transforms\n\nresize = transforms.Resize(32)\n",
    find=find_removed,
)
