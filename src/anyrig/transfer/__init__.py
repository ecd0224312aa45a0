"""Moving nested batches and modules: pinned, asynchronous, prefetched."""

from .host_copy import HostCopy, copy_to_host
from .move import move
from .pin import pin
from .prefetch import prefetch

__all__ = ["HostCopy", "copy_to_host", "move", "pin", "prefetch"]
