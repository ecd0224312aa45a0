"""Tests in this folder run in a process with a shape-only rig: see ../test_finding_promises.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

RIG = os.environ.get("ANYRIG_TEST_FINDINGS_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # On GPUs that have matrix units for float16 only.
    if RIG != "T4":
        collect_ignore = ["test_float16.py"]
    from anyrig.virtual import install

    install(RIG, shape_only=True, assume_values=True)


@pytest.fixture(autouse=True)
def _most_memory_is_taken(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take more than half of the memory, so that no larger batch would fit (R14)."""
    import torch

    taken = []
    for index in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(index).total_memory
        wanted = 0 if "has_free_memory" in request.fixturenames else total * 9 // 16
        taken.append(torch.empty(wanted, dtype=torch.uint8, device=f"cuda:{index}"))
    yield
    del taken
    torch.cuda.empty_cache()


@pytest.fixture
def has_free_memory() -> None:
    """Leave the memory of the GPUs free."""
