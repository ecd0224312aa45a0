"""What the shell completes beyond the names of commands and flags.

`anyrig --install-completion` sets completion up for bash, zsh, fish and PowerShell.
"""

from __future__ import annotations

import re

# The GPUs before the last one, and its count: "A100-40GB+2x" in "A100-40GB+2xT".
_BEFORE_LAST_GPU = re.compile(r"(?:.*[+(,])?(?:\d+[x*])?")


def complete_rig(incomplete: str) -> list[str]:
    """Return the rigs that `incomplete` begins, each with one of the known GPUs."""
    from ..hardware import specs

    before = _BEFORE_LAST_GPU.match(incomplete)
    begun = before[0] if before else ""
    name = incomplete[len(begun) :].casefold()
    keys = [key for key, spec in specs().items() if spec.capability is not None]
    return [begun + key for key in keys if key.casefold().startswith(name)]
