"""Objects on their way to another process: by value, and their tensors through the CPU.

A tensor of a device would come out on the device of that number, which in the other process is
another one, or none; and it would start CUDA there.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
import torch

# What pickle and what it calls raise for an object that cannot be sent.
CANNOT_BE_SENT = (pickle.PicklingError, TypeError, AttributeError, RecursionError)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        # A parameter hands its data over as one of these.
        if type(obj) is torch.Tensor and obj.device.type != "cpu":
            copy = obj.detach().cpu().requires_grad_(obj.requires_grad)
            return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        return super().reducer_override(obj)


def pack(value: Any) -> bytes:
    """Return `value` as bytes; functions and classes that cannot be imported go by value.

    Raises:
        Exception: one of `CANNOT_BE_SENT`.
    """
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()
