"""ARC111 and ARC112: tensor types, which were a dtype and a device in one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Edit, Fix
from ..finding import Hit
from ..guarded import is_guarded
from ..program import Program
from ..rewrite import constant, replace
from ..rule import Rule
from ..torch_names import TENSOR_TYPES
from .sources import GUIDE_0_4, V2_1

_CUDA = "torch.cuda."


def find_default(program: Program) -> Iterator[Hit]:
    """Find `torch.set_default_tensor_type`."""
    for call in program.calls.get("torch.set_default_tensor_type", []):
        name = _type_name(program, call.args[0]) if call.args else None
        yield Hit(
            program.start(call),
            program.end(call),
            "`set_default_tensor_type` has been deprecated since PyTorch 2.1; write "
            "`set_default_dtype` and `set_default_device`",
            _default_fix(program, call, name) if name else None,
        )


def _type_name(program: Program, node: ast.expr) -> str | None:
    name = constant(node)
    if not isinstance(name, str):
        name = program.names.dotted(node)
    return name if name and name.rpartition(".")[2] in TENSOR_TYPES else None


def _default_fix(program: Program, call: ast.Call, name: str) -> Fix:
    torch = program.source(call.func).rpartition(".")[0]
    module = f"{torch}." if torch else program.import_torch()[0] + "."
    dtype = f"{module}set_default_dtype({module}{TENSOR_TYPES[name.rpartition('.')[2]]})"
    if not name.startswith(_CUDA):
        return Fix((replace(program, call, dtype),), is_safe=False)
    is_statement = isinstance(program.parents[call], ast.Expr)
    device = f'{module}set_default_device("cuda")'
    text = f"{dtype}; {device}" if is_statement else f"({dtype}, {device})"
    return Fix((replace(program, call, text),), is_safe=False)


def find_constructors(program: Program) -> Iterator[Hit]:
    """Find `torch.cuda.FloatTensor` and its siblings."""
    for node, name in program.names.references.items():
        if not isinstance(node, ast.Attribute) or not name.startswith(_CUDA):
            continue
        kind = name.removeprefix(_CUDA)
        if kind not in TENSOR_TYPES:
            continue
        parent = program.parents[node]
        called = isinstance(parent, ast.Call) and parent.func is node
        if is_guarded(program, node):
            continue
        fix = _constructor_fix(program, parent, kind) if called else None  # type: ignore[arg-type]
        yield Hit(
            program.start(node),
            program.end(node),
            f"`torch.cuda.{kind}` is a dtype and a GPU in one: the code has no way to run "
            f"elsewhere; pass `dtype=torch.{TENSOR_TYPES[kind]}` and `device=`",
            fix,
        )


def _constructor_fix(program: Program, call: ast.Call, kind: str) -> Fix | None:
    if call.keywords or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if len(call.args) == 1 and isinstance(call.args[0], (ast.List, ast.ListComp)):
        function = "tensor"
    elif call.args and all(type(constant(each)) is int for each in call.args):
        function = "empty"
    else:
        return None
    source = program.source(call.func)
    torch = source.removesuffix(f".cuda.{kind}")
    if torch == source:
        torch = program.import_torch()[0]
    end = program.end(call.args[-1])
    suffix = f', dtype={torch}.{TENSOR_TYPES[kind]}, device="cuda"'
    return Fix((replace(program, call.func, f"{torch}.{function}"), Edit(end, end, suffix)), True)


DEFAULT = Rule(
    code="ARC111",
    name="default-tensor-type",
    happens="It sets the dtype and, for a type of `torch.cuda`, the device of all new tensors. "
    "PyTorch 2.1 deprecated it.",
    since="PyTorch 2.1.0",
    cure="Call `torch.set_default_dtype` and, if a device was meant, `torch.set_default_device`. "
    "`from_numpy` and loaded tensors stay on the CPU with both.",
    source=V2_1,
    fires='import torch\n\ntorch.set_default_tensor_type("torch.DoubleTensor")\n',
    silent="import torch\n\ntorch.set_default_dtype(torch.float64)\n",
    fixed="import torch\n\ntorch.set_default_dtype(torch.float64)\n",
    find=find_default,
)
CONSTRUCTORS = Rule(
    code="ARC112",
    name="cuda-tensor-type",
    happens="`torch.cuda.FloatTensor(…)` makes a tensor on the current CUDA device. Without CUDA "
    "it raises an error, and no argument moves it elsewhere. Not reported behind a condition, a "
    "decorator or a name that mentions GPUs.",
    since="PyTorch 0.4.0 has dtypes and devices",
    cure="Call `torch.tensor`, `torch.empty` or `torch.zeros` with `dtype=` and `device=`.",
    source=GUIDE_0_4,
    fires="import torch\n\nx = torch.cuda.FloatTensor([1, 2])\n",
    silent='import torch\n\nx = torch.tensor([1, 2], dtype=torch.float32, device="cuda")\n',
    fixed='import torch\n\nx = torch.tensor([1, 2], dtype=torch.float32, device="cuda")\n',
    find=find_constructors,
)
