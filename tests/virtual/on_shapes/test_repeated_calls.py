"""Calls that ran before with the same arguments: their Meta kernel does not run again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional


def python_calls(action: Callable[[], object]) -> list[str]:
    """Run `action`; return the functions of Python Meta kernels that it called."""
    found = []

    def note(frame: Any, event: str, _: object) -> None:
        names = ("_meta_registrations", "_decomp", "_refs", "_prims")
        if event == "call" and any(f"torch/{name}" in frame.f_code.co_filename for name in names):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


def normalize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of a batch norm, and the gradient of its input."""
    weight, mean, variance = torch.ones(3, x.shape[1], device="cuda").unbind()
    y, *saved = torch.native_batch_norm(x, weight, weight, mean, variance, True, 0.1, 1e-5)
    gradient, _, _ = torch.ops.aten.native_batch_norm_backward(
        y, x, weight, mean, variance, *saved, True, 1e-5, [True, True, True]
    )
    return y, gradient


def test_a_normalization_runs_once() -> None:
    x = torch.empty(5, 7, 3, 11, device="cuda")
    names = python_calls(lambda: normalize(x))
    assert {"native_batch_norm", "native_batch_norm_backward"} <= set(names)
    again = torch.empty_like(x)
    assert python_calls(lambda: normalize(again)) == []
    assert [part.shape for part in normalize(again)] == [x.shape] * 2


def test_an_optimizer_with_other_factors_runs_once() -> None:
    parameters = [torch.empty(5, 13, device="cuda", requires_grad=True) for _ in range(3)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)

    def step() -> None:
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()

    step()
    assert not {"addcdiv", "addcmul", "lerp"} & set(python_calls(step))


def test_other_strides_give_other_strides() -> None:
    for order in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        x = torch.empty(2, 9, 5, 5, device="cuda").to(memory_format=order)
        assert all(part.is_contiguous(memory_format=order) for part in normalize(x))


def test_the_default_dtype_counts() -> None:
    x = torch.ones(3, 17, dtype=torch.long, device="cuda")
    assert (x / x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_result_that_takes_the_size_of_the_answer() -> None:
    x = torch.empty(19, 3, device="cuda")
    for _ in range(2):
        out = torch.empty(0, device="cuda")
        assert torch.add(x, x, out=out).shape == (19, 3)
        assert out.shape == (19, 3)


def test_results_are_tensors_of_their_own() -> None:
    x = torch.empty(29, 31, device="cuda")
    before = torch.cuda.memory_allocated()
    first = functional.layer_norm(x, (31,))
    size = torch.cuda.memory_allocated() - before
    second = functional.layer_norm(x, (31,))
    assert torch.cuda.memory_allocated() - before == 2 * size > 0
    assert first.data_ptr() != second.data_ptr()


def test_an_operator_of_the_program_runs_each_time() -> None:
    calls = 0
    with torch.library._scoped_library("anyrig_repeated", "DEF") as library:
        library.define("counted(Tensor x) -> Tensor")
        library.impl("counted", lambda x: x.clone(), "CPU")

        @torch.library.register_fake("anyrig_repeated::counted", lib=library)
        def counted(x: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return torch.empty_like(x)

        x = torch.empty(3, device="cuda")
        for _ in range(3):
            torch.ops.anyrig_repeated.counted(x)
    assert calls == 3


def test_deterministic_algorithms_refuse_a_call_that_ran_before() -> None:
    places = torch.empty(1, 3, 4, 4, dtype=torch.long, device="cuda")
    x = torch.empty(1, 3, 4, 4, device="cuda")
    functional.max_unpool2d(x, places, 2)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            functional.max_unpool2d(x, places, 2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert functional.max_unpool2d(x, places, 2).shape == (1, 3, 8, 8)
