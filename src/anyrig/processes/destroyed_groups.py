"""Process groups that a script has destroyed, held until their threads have come to rest.

A fault of PyTorch, up to 2.13 at least (https://github.com/pytorch/pytorch/issues/75097, and
https://github.com/pytorch/pytorch/issues/56297 for the cause): a DDP model that dies after
`destroy_process_group` is the last to let go of the group, and waits for its threads with the GIL.
Over gloo such a thread may be waiting for the GIL just then, to let go of the last collective's
tensors: one model in ten hangs. A moment later none would. `group.last_reference` sees to the
models of `spread`, this to every other. See `tests/processes/test_torch_faults.py`.
"""

from __future__ import annotations

from collections import deque
from functools import wraps
from typing import Any

# A group has sockets, so not all are held. These are more than die together, and one that goes
# because so many came after it has long been at rest.
_MOST_HELD = 16

_held: deque[Any] = deque(maxlen=_MOST_HELD)


def hold_destroyed_groups() -> None:
    """Have `torch.distributed.destroy_process_group` hold on to what it destroys; for ranks.

    A rank's process ends without taking modules apart, so what is held then is never let go of.
    """
    import torch.distributed
    from torch.distributed import distributed_c10d

    destroy = distributed_c10d.destroy_process_group

    @wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        # Private: there is no public list of all groups. With the default one all are destroyed.
        for each in distributed_c10d._world.pg_map:
            if each not in _held and "gloo" in distributed_c10d.get_backend_config(each):
                _held.append(each)
        destroy(group)

    # Where `torch.distributed` has it from, too: what is imported from there must be the same.
    distributed_c10d.destroy_process_group = destroy_process_group
    torch.distributed.destroy_process_group = destroy_process_group
