"""CUDA support of PyTorch's profiler: times come from the virtual clock instead of CUPTI."""

from __future__ import annotations

import functools
from typing import Any

import torch


def patch() -> None:
    """Make profiles of CUDA, with or without the CPU, use the times of the virtual clock."""
    # A CUDA build reads CUPTI, which observes real GPUs. Without CUPTI, PyTorch times each operator
    # with two events and reports the times in the same classes.
    profiler: Any = torch.autograd.profiler
    supported = profiler._supported_activities
    cuda = torch.profiler.ProfilerActivity.CUDA
    profiler._supported_activities = lambda: supported() - {cuda}
    # Programs call this function, and a profile without `activities` uses its result.
    autograd: Any = torch.autograd
    autograd._supported_activities = lambda: supported() | {cuda}

    # PyTorch refuses a profile of CUDA alone without CUPTI, because events time operators and not
    # kernels. Real GPUs support such a profile, so record the operators in addition.
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
