"""Fixtures for the C++ headers that are tested without torch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import pytest
from allocator_model import GIB, AllocatorModel
from compiled_shim import load_shim
from random_kernels import RandomKernels


@pytest.fixture(scope="session")
def allocator_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("caching_allocator_shim", tmp_path_factory.mktemp("shim"))


@pytest.fixture
def make_allocator(allocator_library: ctypes.CDLL) -> Iterator[Callable[[int], AllocatorModel]]:
    with contextlib.ExitStack() as stack:

        def make(size: int) -> AllocatorModel:
            allocator = AllocatorModel(allocator_library, size)
            stack.callback(allocator.close)
            return allocator

        yield make


@pytest.fixture
def allocator(make_allocator: Callable[[int], AllocatorModel]) -> AllocatorModel:
    return make_allocator(GIB)


@pytest.fixture(scope="session")
def philox_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("philox_shim", tmp_path_factory.mktemp("shim"), "-O2")


@pytest.fixture(scope="session")
def kernels(philox_library: ctypes.CDLL) -> RandomKernels:
    return RandomKernels(philox_library)
