"""Tests in this folder run in a process whose CUDA devices are virtual: see ../test_on_rig.py."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

RIG = os.environ.get("ANYRIG_TEST_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    install(RIG)


@pytest.fixture
def own_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make `DEVICE` of the test's file the current device, empty before and after."""
    import torch

    gc.collect()
    gc.freeze()  # otherwise each of hundreds of collections visits all of PyTorch
    with torch.cuda.device(request.module.DEVICE):
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()
