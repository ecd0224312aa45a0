"""Move nested batches and modules: pinned, asynchronous, prefetched."""

from .host_copy import HostCopy, copy_to_host
from .location import device_of
from .move import move
from .pin import pin
from .prefetch import prefetch

__all__ = ["HostCopy", "copy_to_host", "device_of", "move", "pin", "prefetch"]
