"""One file hooks PyTorch; all others subscribe to its events, or replace functions through it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "anyrig"

HOOKS = "observe/hooks.py"
# What belongs to how a spread model computes, and the virtual GPUs themselves.
OTHER_ROOMS = ("parallel/", "virtual/")
# Other values of PyTorch that are set, and why: nothing is observed there.
ASSIGNED = {
    "processes/time_limit.py: distributed_c10d.default_pg_nccl_timeout": "a default of PyTorch",
    "processes/time_limit.py: distributed_c10d.default_pg_timeout": "a default of PyTorch",
    "processes/torch_faults.py: distributed_c10d.destroy_process_group": "a fault of PyTorch",
    "processes/torch_faults.py: torch.distributed.destroy_process_group": "a fault of PyTorch",
}
REGISTERS = re.compile(r"register_(optimizer_step_(pre|post)|module_(\w+_)?)_?hook")


def hooks_in(source: str) -> Iterator[str]:
    """Functions that register hooks of all modules or optimizers, and what of PyTorch is set."""
    tree = ast.parse(source)
    of_torch = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] == "torch"
        and not getattr(node, "level", 0)
    }

    def is_of_torch(node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in of_torch

    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.alias, ast.Name)):
            names = (getattr(node, field, None) for field in ("attr", "name", "id"))
            if REGISTERS.fullmatch(name := next(filter(None, names))):
                yield name
        targets = list(node.targets) if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            targets = [ast.Attribute(one, "set") for one in node.args[:1]]
        for target in targets:
            if isinstance(target, ast.Attribute) and is_of_torch(target.value):
                yield ast.unparse(target)


def test_one_file_hooks_torch() -> None:
    """Subscribe to `Events` of an `Observer`, or replace a function with `Replacements`."""
    found = {
        f"{place}: {hook}"
        for path in PACKAGE.rglob("*.py")
        if not (place := path.relative_to(PACKAGE).as_posix()).startswith((HOOKS, *OTHER_ROOMS))
        for hook in hooks_in(path.read_text())
    }
    assert found == ASSIGNED.keys()


@pytest.mark.parametrize(
    ("source", "hooks"),
    [
        ("from torch.optim.optimizer import register_optimizer_step_pre_hook", 1),
        ("import torch\ntorch.optim.optimizer.register_optimizer_step_post_hook(f)", 1),
        ("from torch.nn.modules import module\nmodule.register_module_forward_hook(f)", 1),
        ("from torch.nn.modules import module\nmodule.register_module_forward_pre_hook(f)", 1),
        ("import torch\ntorch.nn.modules.module.register_module_full_backward_hook(f)", 1),
        ("import torch\ntorch.autograd.backward = f", 1),
        ("from torch import Tensor\nTensor.backward = f", 1),
        ("from torch import Tensor\nsetattr(Tensor, name, f)", 1),
        ("from torch import nn\nsetattr(nn.functional, 'dropout', f)", 1),
        ("import torch.nn as nn\nnn.Module.zero_grad = f", 1),
        ("def f(module):\n    module.register_forward_hook(f)\n    module.training = True", 0),
        ("from torch import nn\n\ndef f(self):\n    self.step = nn.Module", 0),
        ("from .torch import Tensor\nTensor.backward = f", 0),
    ],
)
def test_a_hook_is_found(source: str, hooks: int) -> None:
    assert len({*hooks_in(source)}) == hooks


def test_the_one_file_is_found_itself() -> None:
    assert len({*hooks_in((PACKAGE / HOOKS).read_text())}) == 4
