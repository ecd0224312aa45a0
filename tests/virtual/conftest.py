"""Fixtures for the parts of `anyrig.virtual` that are tested without torch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator

import pytest
from compiled_shim import load_shim
from random_kernels import RandomKernels
from virtual_card import GIB, VirtualCard


@pytest.fixture(scope="session")
def allocator_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("caching_allocator_shim", tmp_path_factory.mktemp("shim"))


@pytest.fixture
def card_of(allocator_library: ctypes.CDLL) -> Iterator[Callable[[int], VirtualCard]]:
    with contextlib.ExitStack() as stack:

        def make(size: int) -> VirtualCard:
            card = VirtualCard(allocator_library, size)
            stack.callback(card.close)
            return card

        yield make


@pytest.fixture
def card(card_of: Callable[[int], VirtualCard]) -> VirtualCard:
    return card_of(GIB)


@pytest.fixture(scope="session")
def philox_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_shim("philox_shim", tmp_path_factory.mktemp("shim"), "-O2")


@pytest.fixture(scope="session")
def kernels(philox_library: ctypes.CDLL) -> RandomKernels:
    return RandomKernels(philox_library)
