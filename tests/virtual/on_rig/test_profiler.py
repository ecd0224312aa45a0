"""PyTorch's profiler measures virtual time for CUDA activities."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.profiler import emit_nvtx

from anyrig.virtual import installation

DEVICE = "cuda:1"


@pytest.mark.virtual_only("the time is that of an A100")
def test_the_profiler_gives_the_time_of_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(1024, 1024, device=DEVICE)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with (
        torch.cuda.device(DEVICE),
        torch.profiler.profile(activities=activities, acc_events=True) as profile,
    ):
        x @ x
    (product,) = [event for event in profile.key_averages() if event.key == "aten::mm"]
    # 2 * 1024^3 FLOPs at the 19.5 TFLOP/s of an A100 in float32 take 0.11 ms.
    assert 110 < product.device_time_total < 160
    # In a CUDA build, Kineto logs once a process that it found no driver.
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[W")]
    assert "CUDA" not in "".join(warnings)


def test_a_profile_of_cuda_alone() -> None:
    x = torch.ones(4, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        x @ x
    if installation() is not None:  # events of a real GPU have the names of kernels
        assert "aten::dot" in {event.key for event in profile.key_averages()}
    assert "CUDA total" in profile.key_averages().table(sort_by="cuda_time_total")


def test_a_profile_that_names_no_activities_is_of_cuda_too() -> None:
    assert torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    x = torch.ones(4, device="cuda")
    with torch.profiler.profile(acc_events=True) as profile:
        x @ x
    (product,) = [event for event in profile.key_averages() if event.key == "aten::dot"]
    assert product.device_time_total > 0


def test_the_profiler_sees_memory_as_the_gpu_gives_it() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        x = torch.ones(1000, device="cuda")
        y = x + 1
        del x
    events = {event.key: event for event in profile.key_averages()}
    assert events["aten::empty"].self_device_memory_usage == 4096  # a multiple of 512 bytes
    assert events["aten::add"].self_device_memory_usage == 4096
    assert events["[memory]"].self_device_memory_usage == -4096
    assert sum(event.self_device_memory_usage for event in events.values()) == (
        torch.cuda.memory_allocated() - before
    )
    assert sum(abs(event.self_cpu_memory_usage) for event in events.values()) == 0
    assert y.numel() == 1000


def test_the_profiler_sees_where_memory_ran_out() -> None:
    with (
        torch.profiler.profile(profile_memory=True, acc_events=True) as profile,
        pytest.raises(torch.OutOfMemoryError),
    ):
        torch.empty(2**45, device="cuda")
    assert "[OutOfMemory]" in {event.name for event in profile.events()}


def test_operators_inside_a_kernel_are_not_profiled() -> None:
    x = torch.ones(4, device="cuda")
    with torch.profiler.profile(acc_events=True) as profile:
        x *= 2
    names = {event.name for event in profile.events() if event.name.startswith("aten")}
    assert names == {"aten::mul_"}  # the CPU kernel also converts the number to a tensor


def test_nvtx_marks_do_nothing() -> None:
    with emit_nvtx():
        assert torch.ones(2, device="cuda").sum().item() == 2
