"""PyTorch's profiler, asked for CUDA: it reads the virtual clock, where it would ask CUPTI."""

from __future__ import annotations

import functools
from typing import Any

import torch


def patch() -> None:
    """Let profiles of CUDA, with the CPU or without, take the times that the clock gives."""
    # A build for CUDA would ask CUPTI, which watches cards. Without it PyTorch gives each operator
    # the time between two events, in the same classes.
    profiler: Any = torch.autograd.profiler
    supported = profiler._supported_activities
    cards = torch.profiler.ProfilerActivity.CUDA
    profiler._supported_activities = lambda: supported() - {cards}
    # What programs ask, and what a profile is of that names no activities.
    autograd: Any = torch.autograd
    autograd._supported_activities = lambda: supported() | {cards}

    # That way has no kernels by themselves, so PyTorch would refuse a profile of CUDA alone, which
    # cards give. It gets the operators.
    kind = profiler.profile
    make = kind.__init__

    @functools.wraps(make)
    def make_with_operators(self: Any, *arguments: Any, **options: Any) -> None:
        if options.get("use_cpu") is False and "cuda" in (
            options.get("use_device"),
            "cuda" if options.get("use_cuda") else None,
        ):
            options["use_cpu"] = True
        make(self, *arguments, **options)

    kind.__init__ = make_with_operators
