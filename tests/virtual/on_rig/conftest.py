"""Tests in this folder run on the CUDA devices that ANYRIG_TEST_RIG names.

../test_on_rig.py names eight virtual GPUs, for which the tests are written. `make test-gpu` names
`own`, the machine's own GPUs, and then a test that fails shows that virtual GPUs differ from real
ones, or that the test is wrong. On another rig than `WRITTEN_FOR`:

- the `DEVICE` of a file, and its `OTHER`, is the first GPU if the rig has no GPU of that index;
- a test that asks for a GPU that the rig does not have is skipped;
- so is a test marked `virtual_only("reason")`.
"""

from __future__ import annotations

import gc
import os
import re
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
WRITTEN_FOR = "8xA100-80GB"
OWN = "own"
RIG = os.environ.get("ANYRIG_TEST_RIG")
NO_SUCH_GPU = re.compile(
    r"invalid device ordinal|invalid device id|is not visible|but torch\.cuda\.device_count\(\) is"
    r"|there is no cuda:|device index out of range|is out of index range",
    re.I,
)

if RIG is None:
    collect_ignore_glob = ["test_*.py"]
elif RIG != OWN:
    from anyrig.virtual import install

    install(RIG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if RIG in (None, WRITTEN_FOR):
        return
    own = [item for item in items if item.path.parent == FOLDER]
    for module in {item.module for item in own if isinstance(item, pytest.Function)}:
        for name in {"DEVICE", "OTHER"} & vars(module).keys():
            setattr(module, name, nearest(vars(module)[name]))
    for item in own:
        if marker := item.get_closest_marker("virtual_only"):
            item.add_marker(pytest.mark.skip(reason=f"only on {WRITTEN_FOR}: {marker.args[0]}"))


def nearest(device: Any) -> Any:
    """Return `device` if the rig has it, else the first GPU, written in the same way."""
    import torch

    index = device if isinstance(device, int) else torch.device(device).index
    if index < torch.cuda.device_count():
        return device
    return 0 if isinstance(device, int) else type(device)("cuda:0")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from skip_without_gpu())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from skip_without_gpu())


def skip_without_gpu() -> Generator[None, object, object]:
    """Skip a test that fails because it asks for a GPU that the rig does not have."""
    try:
        return (yield)
    except Exception as error:
        lack = NO_SUCH_GPU.search(str(error))
        if lack is None or RIG in (None, WRITTEN_FOR):
            raise
        pytest.skip(f"this rig has too few GPUs: {lack.group()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """Release the tensors of a failed test, which would take memory in all later tests."""
    report = yield
    if RIG is not None and call.excinfo is not None:
        traceback.clear_frames(call.excinfo.tb)
    return report


@pytest.fixture
def own_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make `DEVICE` of the test's file the current device, empty before and after."""
    import torch

    gc.collect()
    gc.freeze()  # otherwise each of hundreds of collections visits all of PyTorch
    with torch.cuda.device(request.module.DEVICE):
        wait_for_last_gradients()
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()


@pytest.fixture
def graph_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make `DEVICE` of the test's file the current device, without what a failed capture leaves."""
    import torch

    gc.collect()
    gc.freeze()
    with torch.cuda.device(request.module.DEVICE):
        # A failed capture leaves its stream as the current stream.
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        yield
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()


def wait_for_last_gradients() -> None:
    """Wait until autograd's thread of the current device has released the gradients it returned.

    The thread wakes the caller of `torch.autograd.grad` before it drops its own references to the
    results, so an earlier test's gradients could be freed in the middle of this test. A thread that
    processes the next backward has dropped the previous one, and `backward` returns nothing.
    """
    import torch

    torch.ones((), device="cuda", requires_grad=True).backward()
