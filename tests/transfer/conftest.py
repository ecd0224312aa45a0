"""The first GPU, and an end of all threads that prefetch."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from prefetch_threads import assert_threads_end


@pytest.fixture
def gpu() -> torch.device:
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, 0)


@pytest.fixture
def no_thread_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert_threads_end()
