"""ARC203: what code forgets about a model in `nn.DataParallel`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..edit import Fix
from ..finding import Hit
from ..kind import Kind
from ..program import Program
from ..rewrite import insert_after
from ..rule import Rule
from ..torch_names import LOSS_FUNCTIONS
from .sources import page

_PARALLEL = "torch.nn.DataParallel"
_OF_EVERY_MODULE = frozenset(
    {
        *("module", "device_ids", "output_device", "dim", "src_device_obj", "training", "forward"),
        *("T_destination", "dump_patches", "call_super_init", "compile", "get_extra_state"),
        *(
            "add_module",
            "apply",
            "bfloat16",
            "buffers",
            "children",
            "cpu",
            "cuda",
            "double",
            "eval",
        ),
        *("extra_repr", "float", "get_buffer", "get_parameter", "get_submodule", "half", "ipu"),
        *("load_state_dict", "modules", "mtia", "named_buffers", "named_children", "to", "type"),
        *("named_modules", "named_parameters", "parameters", "register_backward_hook", "train"),
        *("register_buffer", "register_forward_hook", "register_forward_pre_hook", "xpu"),
        *("register_full_backward_hook", "register_full_backward_pre_hook", "register_module"),
        *("register_load_state_dict_post_hook", "register_parameter", "requires_grad_"),
        *("register_load_state_dict_pre_hook", "register_state_dict_post_hook", "zero_grad"),
        *("register_state_dict_pre_hook", "set_extra_state", "set_submodule", "share_memory"),
        *("state_dict", "to_empty", "replicate", "scatter", "parallel_apply", "gather"),
    }
)


def find(program: Program) -> Iterator[Hit]:
    """Find saved names with a prefix, attributes that the wrapper hides, and losses outside."""
    if not program.calls.get(_PARALLEL):
        return
    yield from _hidden(program)
    for call in program.calls.get("torch.save", []):
        yield from _saved(program, call)
    for call in program.calls[_PARALLEL]:
        if _is_called(program) and _computes_loss(program):
            yield Hit(
                program.start(call),
                program.end(call),
                "the loss is computed on the first GPU alone, from all outputs, so its memory is "
                "full first; compute it in the replicas: "
                "`anyrig.spread(model, rig, loss=criterion)`",
            )


def _hidden(program: Program) -> Iterator[Hit]:
    for node in program.all(ast.Attribute):
        if node.attr in _OF_EVERY_MODULE or node.attr.startswith("_"):
            continue
        if isinstance(node.ctx, ast.Load) and Kind.PARALLEL in program.kinds.of(node.value):
            yield Hit(
                program.start(node),
                program.end(node),
                f"`DataParallel` hides `{node.attr}` of the model, so this raises AttributeError; "
                f"write `.module.{node.attr}`",
                Fix((insert_after(program, node.value, ".module"),), is_safe=False),
            )


def _saved(program: Program, call: ast.Call) -> Iterator[Hit]:
    values = [call.args[0]] if call.args else []
    if values and isinstance(values[0], ast.Name):
        values += [each.value for each in program.scopes.bindings(values[0]) if each.value]
    for value in values:
        for node in ast.walk(value):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "state_dict"
                and _is_parallel(program, node.func.value)
            ):
                model = node.func.value
                yield Hit(
                    program.start(node),
                    program.end(node),
                    "the names of these tensors begin with `module.`, and fit no model outside "
                    "DataParallel; save `.module.state_dict()`",
                    Fix((insert_after(program, model, ".module"),), is_safe=False),
                )


def _is_parallel(program: Program, model: ast.expr) -> bool:
    """Return whether a model may be in DataParallel, and in no other wrapper."""
    kind = program.kinds.possible(model)
    return Kind.PARALLEL in kind and Kind.DISTRIBUTED not in kind


def _is_called(program: Program) -> bool:
    """Return whether this file calls a model in DataParallel."""
    return any(
        isinstance(call.func, (ast.Name, ast.Attribute))
        and program.names.dotted(call.func) is None
        and _is_parallel(program, call.func)
        for call in program.all(ast.Call)
    )


def _computes_loss(program: Program) -> bool:
    functions = (f"torch.nn.functional.{name}" for name in LOSS_FUNCTIONS)
    if any(program.calls.get(name) for name in functions):
        return True
    return any(Kind.CRITERION in program.kinds.of(call.func) for call in program.all(ast.Call))


RULE = Rule(
    code="ARC203",
    name="data-parallel",
    happens="`nn.DataParallel` is a module around the model: it hides the model's attributes, its "
    "`state_dict` has the prefix `module.`, and a loss outside it is computed on the first GPU "
    "from "
    "the outputs of all.",
    since=None,
    cure="Write `.module` where the model is meant, and compute the loss in the replicas; or use "
    "`anyrig.spread`, which has no prefix.",
    source=page("generated/torch.nn.DataParallel.html"),
    fires=(
        "import torch\nfrom torch import nn\n\nmodel = nn.DataParallel(nn.Linear(2, 2))\n"
        'torch.save(model.state_dict(), "model.pt")\n'
    ),
    silent=(
        "import torch\nfrom torch import nn\n\nmodel = nn.DataParallel(nn.Linear(2, 2))\n"
        'torch.save(model.module.state_dict(), "model.pt")\n'
    ),
    fixed=(
        "import torch\nfrom torch import nn\n\nmodel = nn.DataParallel(nn.Linear(2, 2))\n"
        'torch.save(model.module.state_dict(), "model.pt")\n'
    ),
    find=find,
    is_about_versions=False,
)
