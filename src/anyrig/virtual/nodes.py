"""The node of a process, which determines the devices that the process sees."""

from __future__ import annotations

import os

from ..errors import VirtualRigError
from .rig import VirtualRig

# torchrun sets this variable in each worker: the rank of its agent. There is one agent per node.
NODE_VARIABLE = "GROUP_RANK"


def node_of_process(rig: VirtualRig) -> int:
    """Return the node of `rig` whose devices this process sees, counted from 0.

    On a rig of several nodes, the node is ``GROUP_RANK``, which ``torchrun --nnodes`` sets in each
    worker. A process without ``GROUP_RANK`` is on node 0. On a rig of one node, every process is on
    node 0.

    Raises:
        VirtualRigError: ``GROUP_RANK`` is not a node of the rig.
    """
    text = os.environ.get(NODE_VARIABLE)
    if rig.node_count == 1 or text is None:
        return 0
    if not text.isdecimal() or int(text) >= rig.node_count:
        raise VirtualRigError(
            f"{NODE_VARIABLE} is {text!r} in this process, and the virtual rig {rig} has the nodes "
            f"0 to {rig.node_count - 1}; start as many nodes (torchrun --nnodes) as the rig has"
        )
    return int(text)
