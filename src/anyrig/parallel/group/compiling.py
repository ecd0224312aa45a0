"""What torch.compile compiles of a model that is spread over ranks: the module, as with DDP.

::

    torch.compile(model)   RankModule.forward      runs as it is: ranks meet, rows are counted
                           └── module.forward      compiled
"""

from __future__ import annotations

from torch._compile import _disable_dynamo

# What runs around the module, and differs from step to step.
_PACKAGES = ("anyrig.parallel", "anyrig.transfer")

_left: set[str] = set()


# Private, but the form of `torch.compiler.disable` that does not import the compiler at once.
@_disable_dynamo
def leave_to_modules() -> None:
    """Have torch.compile leave anyrig's functions alone from now on, and compile what they call.

    PyTorch does so for DDP and FSDP2 by the files that their functions are in. Its list is private;
    `torch.compiler.disable` would leave the module uncompiled, too.
    """
    from torch._dynamo import trace_rules

    for package in _PACKAGES:
        if package not in _left:
            trace_rules.add(package)
            _left.add(package)
