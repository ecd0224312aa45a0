"""Private names of PyTorch that `anyrig.devices` uses."""

from __future__ import annotations

from ..name import PrivateName

_START = "what started CUDA, and settings that come too late"

DEVICES = (
    PrivateName("torch.cuda._is_in_bad_fork", _START),
    PrivateName("torch.cuda._lazy_call", _START),
)
