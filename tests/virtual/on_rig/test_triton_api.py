"""The driver interface that Triton uses, tested with a stand-in for Triton."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from anyrig.virtual.extras import triton_api

pytestmark = pytest.mark.virtual_only("real GPUs run Triton itself")


class InterpreterError(Exception):
    pass


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton", "triton.runtime", "triton.runtime.errors"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(
        sys.modules["triton.runtime.errors"], "InterpreterError", InterpreterError, raising=False
    )


def test_pytorch_finds_no_triton() -> None:
    assert torch.utils._triton.has_triton() is False
    assert importlib.import_module("os").environ["TRITON_INTERPRET"] == "1"


def test_a_program_may_choose_not_to_interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    triton_api.patch(ModuleType("core"))
    assert importlib.import_module("os").environ["TRITON_INTERPRET"] == "0"


def test_the_driver_knows_the_limits_of_a_gpu() -> None:
    driver = SimpleNamespace(CudaUtils=None, CudaDriver=SimpleNamespace(get_benchmarker=None))
    triton_api._replace_driver(driver)
    utilities: Any = driver.CudaUtils
    assert utilities().get_device_properties(0) == {
        "max_shared_mem": 163 * 1024,
        "max_num_regs": 65536,
        "multiprocessor_count": 108,
        "warpSize": 32,
    }
    with pytest.raises(RuntimeError, match="leave TRITON_INTERPRET at 1"):
        utilities().load_binary("name", b"", 0, 0)
    benchmarker: Any = driver.CudaDriver.get_benchmarker
    assert benchmarker(driver) is triton_api._run_once


@pytest.mark.usefixtures("triton")
def test_the_first_configuration_that_compiles_is_the_fastest() -> None:
    runs: list[int] = []

    def fails(cause: Exception) -> Any:
        def kernel() -> None:
            raise InterpreterError("kernel") from cause

        return kernel

    assert triton_api._run_once(lambda: runs.append(1)) == [0.0, 0.0, 0.0]
    assert runs == [1]
    assert triton_api._run_once(lambda: None, quantiles=[0.5]) == [0.0]
    assert triton_api._run_once(fails(AssertionError()), quantiles=(0.1, 0.9)) == [float("inf")] * 2
    with pytest.raises(InterpreterError):
        triton_api._run_once(fails(ZeroDivisionError()))
    with pytest.raises(KeyError):
        triton_api._run_once(lambda: {}["absent"])


def test_measuring_takes_few_runs_however_long_a_program_asks_for() -> None:
    asked: list[dict[str, Any]] = []

    def do_bench(fn: Any, warmup: int = 25, rep: int = 100, **options: Any) -> float:
        asked.append({"warmup": warmup, "rep": rep, **options})
        return float(fn())

    testing = SimpleNamespace(do_bench=do_bench, do_bench_cudagraph=lambda fn, rep=20: None)
    triton_api._measure_few_times(testing)
    assert testing.do_bench(lambda: 3, 50, 500, quantiles=[0.5]) == 3
    assert testing.do_bench_cudagraph(lambda: 4, 80, return_mode="min") == 4
    assert asked == [
        {"warmup": 0, "rep": 0, "quantiles": [0.5]},
        {"warmup": 0, "rep": 0, "return_mode": "min"},
    ]


def test_a_module_is_adapted_now_or_when_it_is_imported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted: list[tuple[str, bool]] = []

    def adapt(module: ModuleType) -> None:
        adapted.append((module.__name__, hasattr(module, "made")))

    triton_api._when_imported("sys", adapt)
    (tmp_path / "anyrig_stand_in.py").write_text("made = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    triton_api._when_imported("anyrig_stand_in", adapt)
    assert adapted == [("sys", False)]
    importlib.import_module("anyrig_stand_in")
    assert adapted == [("sys", False), ("anyrig_stand_in", True)]
    assert sys.meta_path == before
    del sys.modules["anyrig_stand_in"]
