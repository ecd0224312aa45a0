"""Which node of a rig a process is on, and so which devices it sees."""

from __future__ import annotations

import os

from ..errors import VirtualRigError
from .rig import VirtualRig

# torchrun gives it to each worker: the rank of the agent, of which there is one a node.
NODE_WORD = "GROUP_RANK"


def own_node(rig: VirtualRig) -> int:
    """Return the node of `rig` whose devices this process sees, counted from 0.

    On a rig of several nodes it is torchrun's ``GROUP_RANK``, which ``torchrun --nnodes`` sets in
    each worker; a process without it is on node 0. A rig of one node is the machine of every
    process, whatever launched it.

    Raises:
        VirtualRigError: the rig has no such node.
    """
    text = os.environ.get(NODE_WORD)
    if rig.node_count == 1 or text is None:
        return 0
    if not text.isdecimal() or int(text) >= rig.node_count:
        raise VirtualRigError(
            f"{NODE_WORD} is {text!r} in this process, and the virtual rig {rig} has the nodes "
            f"0 to {rig.node_count - 1}; start as many nodes (torchrun --nnodes) as the rig has"
        )
    return int(text)
