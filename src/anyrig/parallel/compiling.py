"""What torch.compile does with a spread model.

Over ranks it compiles the module, as with DDP::

    torch.compile(model)   RankModule.forward      runs as it is: ranks meet, rows are counted
                           └── module.forward      compiled

Over several devices of one process it compiles nothing, and is refused: the parameters of replicas
are other tensors in each step, and each step would be compiled anew.
"""

from __future__ import annotations

import functools
from typing import NoReturn

# Private, but the form of `torch.compiler.disable` that does not import the compiler at once.
from torch._compile import _disable_dynamo

from ..errors import SpreadError

# What runs around the module, and differs from step to step.
_PACKAGES = ("anyrig.parallel", "anyrig.transfer")


@_disable_dynamo
@functools.cache
def leave_to_modules() -> None:
    """Have torch.compile leave anyrig's own functions alone, and compile what they call.

    PyTorch does so for DDP and FSDP2 by the files that their functions are in. Its list is private;
    `torch.compiler.disable` would leave the module uncompiled, too.
    """
    from torch._dynamo import trace_rules

    for package in _PACKAGES:
        trace_rules.add(package)


@_disable_dynamo
def refuse_several_devices(name: str, devices: int) -> NoReturn:
    """Raise SpreadError: a module of this name is spread over several devices of one process."""
    raise SpreadError(
        f"torch.compile was given a model of {name} that is spread over {devices} devices in one "
        "process, which it cannot compile. Start a process for each device, where the same line "
        f"compiles: anyrig run SCRIPT. Or compile functions that {name}.forward() calls. To call "
        "the model uncompiled in a function that is compiled: torch.compiler.disable(model)"
    )
