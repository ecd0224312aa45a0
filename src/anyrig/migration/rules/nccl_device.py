"""ARC211: ranks over NCCL that all compute on GPU 0."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..finding import Hit
from ..program import Program
from ..rewrite import constant, has_stars, keyword
from ..rule import Rule
from .sources import page

_INIT = "torch.distributed.init_process_group"
# "nccl", "nccl-legacy", "nccl2", "nccl-lazy"; also for one kind of device, "cpu:gloo,cuda:nccl".
_NCCL = re.compile(r"(.*cuda:)?nccl(2|-\w+)?", re.IGNORECASE)
# The ways in which a rank selects its GPU.
_SELECTS = {
    *("torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index"),
    *("torch.accelerator.set_device_idx", "torch.accelerator.device_index"),
}
_VARIABLE = "CUDA_VISIBLE_DEVICES"


def find(program: Program) -> Iterator[Hit]:
    """Find groups over NCCL in a program that says `cuda` and selects no GPU."""
    calls = [call for call in program.calls.get(_INIT, []) if _is_over_nccl(call)]
    if not calls or _selects_gpu(program) or not _says_cuda(program):
        return
    for call in calls:
        yield Hit(
            program.start(call),
            program.end(call),
            "no rank selects its GPU, so `cuda` is GPU 0 on every rank, which NCCL refuses; call "
            "`torch.cuda.set_device(local_rank)` first",
        )


def _is_over_nccl(call: ast.Call) -> bool:
    if has_stars(call) or keyword(call, "device_id") is not None:
        return False
    given = keyword(call, "backend")
    backend = given.value if given else call.args[0] if call.args else None
    return _NCCL.fullmatch(str(constant(backend))) is not None


def _selects_gpu(program: Program) -> bool:
    if any(program.calls.get(name) for name in _SELECTS):
        return True
    return any(node.value == _VARIABLE for node in program.all(ast.Constant))


def _says_cuda(program: Program) -> bool:
    """Return whether the program uses the current GPU, and names none by its number."""
    says = any(not call.args for call in program.method_calls.get("cuda", []))
    says = says or any(node.value == "cuda" for node in program.all(ast.Constant))
    return says and not any(_may_name_gpu(program, call) for call in program.all(ast.Call))


def _may_name_gpu(program: Program, call: ast.Call) -> bool:
    """Return whether an argument of a call may be the number of a GPU."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    values = {each.arg: each.value for each in call.keywords}
    if "device_ids" in values:
        return True
    if program.names.dotted(call.func) == "torch.device":
        return len(call.args) > 1 or any(constant(each) is ... for each in call.args)
    if name == "cuda":
        return bool(call.args)
    device = call.args[0] if name == "to" and call.args else values.get("device")
    if isinstance(device, (ast.Name, ast.Attribute)):
        text = program.source(device).lower()
        return "rank" in text or "gpu" in text
    return isinstance(device, (ast.JoinedStr, ast.BinOp, ast.Call, ast.Subscript))


RULE = Rule(
    code="ARC211",
    name="nccl-without-a-device",
    happens="Each rank computes on its current GPU, which is GPU 0 until the program selects "
    "another. NCCL refuses two ranks on one GPU. From PyTorch 2.15 on, the group belongs to the "
    "GPU of LOCAL_RANK, and a tensor on GPU 0 is an error on all other ranks. Reported if the "
    "program names its device `cuda`, without a number.",
    since=None,
    cure="Call `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))` before, and pass "
    "`device_id`; or use `anyrig.distribute(loader)` and `anyrig.spread(model)`.",
    source=page("distributed.html"),
    fires=(
        "import torch\nimport torch.distributed as dist\n\n"
        'dist.init_process_group("nccl")\nx = torch.ones(2, device="cuda")\ndist.all_reduce(x)\n'
    ),
    silent=(
        "import os\n\nimport torch\nimport torch.distributed as dist\n\n"
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
        'dist.init_process_group("nccl")\nx = torch.ones(2, device="cuda")\ndist.all_reduce(x)\n'
    ),
    find=find,
    is_about_versions=False,
)
