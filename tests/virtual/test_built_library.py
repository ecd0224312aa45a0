"""What the compiler says of the backend, and which functions of Python the backend calls."""

from __future__ import annotations

import pytest

from anyrig.virtual.build import build_extension
from anyrig.virtual.compiler import warnings_of


def test_every_method_that_overrides_says_so() -> None:
    """A method that should override PyTorch's, but does not, is silently never called.

    Mark a method that only some versions of PyTorch declare with a macro of `device/override.h`.
    """
    file = warnings_of(build_extension())
    if not file.exists():
        pytest.skip("the library was copied from elsewhere, without the compiler's warnings")
    lines = file.read_text().splitlines()
    flags = ("[-Wsuggest-override]", "[-Woverloaded-virtual", "[-Winconsistent-missing-override]")
    assert [line for line in lines if any(flag in line for flag in flags)] == []


def test_the_backend_does_not_walk_the_threads_of_the_interpreter() -> None:
    # Their list needs a lock of the interpreter, which extensions cannot take: other threads enter
    # and leave the list without the GIL.
    library = build_extension().read_bytes()
    assert b"PyObject_CallNoArgs" in library
    for name in (b"PyThreadState_Next", b"PyInterpreterState_ThreadHead"):
        assert name not in library


def test_the_backend_is_built_without_debug_checks() -> None:
    # Unless NDEBUG is set, PyTorch's headers call this function around each call of an operator.
    library = build_extension().read_bytes()
    assert b"2at4_ops" in library
    assert b"dispatch_trace_nesting_incr" not in library
