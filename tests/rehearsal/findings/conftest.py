"""Tests in this folder run in a process with a shape-only rig: see ../test_finding_promises.py."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

RIG = os.environ.get("ANYRIG_TEST_FINDINGS_RIG")

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from anyrig.virtual import install

    install(RIG, shape_only=True, assume_values=True)


@pytest.fixture(autouse=True)
def _most_memory_is_taken(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take more than half of the memory, so that no larger batch would fit (R14)."""
    import torch

    wanted = 0 if "has_free_memory" in request.fixturenames else 45 << 30
    taken = [torch.empty(wanted, dtype=torch.uint8, device=f"cuda:{index}") for index in range(4)]
    yield
    del taken
    torch.cuda.empty_cache()


@pytest.fixture
def has_free_memory() -> None:
    """Leave the memory of the GPUs free."""
