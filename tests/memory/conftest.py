"""What tests of `survive` begin and end with."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest
import torch
from surviving_steps import fail_allocation


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Leave out the objects of other tests, among which `survive` would search for modules."""
    gc.collect()
    gc.freeze()
    before, random_state = torch.get_default_dtype(), random.getstate()
    torch.set_default_dtype(torch.float64)
    torch.cuda.manual_seed_all(0)
    yield
    fail_allocation(0)
    torch.set_default_dtype(before)
    random.setstate(random_state)
