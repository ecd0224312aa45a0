"""What all tests start from."""

import atexit
import gc
import os
import signal
from importlib import import_module
from pathlib import Path

import pytest
import torch

from anyrig.virtual import installation
from watched_tests import WatchedTests

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that: the tests
# that interrupt one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs of tests would inherit it, and with it ``print(a, b)`` is four writes: the lines of two
# processes that share a pipe would mix.
os.environ.pop("PYTHONUNBUFFERED", None)

# `make test` has a process for each core: more threads would wait for each other. Not in the
# environment, which programs of tests would inherit.
torch.set_num_threads(1)


_LAST_FILE = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--watch-hazards", action="store_true", help="fail tests that make a mistake silently"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--watch-hazards"):
        config.pluginmanager.register(WatchedTests())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give each test the same numbers, and what earlier files have left to no garbage collection.

    Otherwise each collection, and each look at all objects, would take longer from file to file.
    """
    # The plugin has installed virtual GPUs by now, if the machine has no GPU.
    virtual_only = item.get_closest_marker("virtual_only")
    if virtual_only is not None and installation() is None:
        pytest.skip(f"does not hold for real GPUs: {virtual_only.args[0]}")
    torch.default_generator.manual_seed(0)
    if item.session.stash.get(_LAST_FILE, None) != item.path:
        item.session.stash[_LAST_FILE] = item.path
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Leave the modules and tests themselves out of each garbage collection that a test makes.

    An optimizer's first step imports PyTorch's compiler, which has more objects than all else.
    """
    import_module("torch._dynamo")
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # nanobind's bindings, such as Triton's, report what stays frozen
