"""What torch.compile does with a spread model.

Over ranks it compiles the module, as with DDP::

    torch.compile(model)   RankModule.forward      not compiled: ranks exchange sample counts
                           └── module.forward      compiled

On several devices of one process, torch.compile is refused: a replica reads its parameters as new
tensors in each step, so each step would be compiled again.
"""

from __future__ import annotations

import functools
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch

# Private; unlike `torch.compiler.disable`, it does not import the compiler at once.
from torch._compile import _disable_dynamo

from ..errors import SpreadError


@_disable_dynamo
@functools.cache
def leave_to_modules() -> None:
    """Make torch.compile skip anyrig's functions, and compile the functions that they call.

    PyTorch does the same for DDP and FSDP2, whose files are in a private list.
    `torch.compiler.disable` would leave the module uncompiled, too.
    """
    from torch._dynamo import trace_rules

    for package in ("anyrig.parallel", "anyrig.transfer"):
        trace_rules.add(package)


def uncompiled() -> AbstractContextManager[Any]:
    """Return a context in which compiled modules compute as if they were not compiled.

    It keeps a call for other shapes from compiling them again. It does not load the compiler.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


_COMPILE_LAYERS = (
    "Compile its layers, before the module is spread: module.layers[0] = "
    "torch.compile(module.layers[0]), and so on"
)


def refuse_compiled_root(module: torch.nn.Module) -> None:
    """Raise SpreadError if a module that is to be divided is compiled as a whole."""
    if "_orig_mod" in module._modules:  # private; `test_pipeline_failures.py` checks it
        raise SpreadError(
            f"torch.compile has compiled this {type(module._modules['_orig_mod']).__name__} as a "
            f"whole, so that its layers cannot be on different devices. {_COMPILE_LAYERS}"
        )


@_disable_dynamo
def refuse_pipeline(name: str, devices: int) -> NoReturn:
    """Raise SpreadError for module class `name`, in stages on `devices` devices."""
    raise SpreadError(
        f"torch.compile was given a pipeline of {name} on {devices} devices in one process, which "
        f"it cannot compile. {_COMPILE_LAYERS}. To call the model uncompiled in a function that "
        "is compiled: torch.compiler.disable(model)"
    )


@_disable_dynamo
def refuse_several_devices(name: str, devices: int) -> NoReturn:
    """Raise SpreadError for module class `name`, spread over `devices` devices of one process."""
    raise SpreadError(
        f"torch.compile was given a model of {name} that is spread over {devices} devices in one "
        "process, which it cannot compile. Start a process for each device, where the same line "
        f"compiles: anyrig run SCRIPT. Or compile functions that {name}.forward() calls. To call "
        "the model uncompiled in a function that is compiled: torch.compiler.disable(model)"
    )
