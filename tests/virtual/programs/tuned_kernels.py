"""Triton kernels that are autotuned and benchmarked."""

import torch
import triton
import triton.language as tl

ran = []


@triton.autotune(
    configs=[
        triton.Config({"block": 2048}, num_warps=8, pre_hook=lambda names: ran.append(2048)),
        triton.Config({"block": 256}, num_warps=4, pre_hook=lambda names: ran.append(256)),
        triton.Config({"block": 128}, num_warps=2, pre_hook=lambda names: ran.append(128)),
    ],
    key=["size"],
    reset_to_zero=["out"],
)
@triton.heuristics({"is_even": lambda names: names["size"] % names["block"] == 0})
@triton.jit
def add(x, out, size, block: tl.constexpr, is_even: tl.constexpr):
    tl.static_assert(block <= 1024)
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < size
    numbers = tl.load(x + places) if is_even else tl.load(x + places, mask=inside)
    tl.atomic_add(out + places, numbers, mask=inside)


def launch(x, out):
    add[lambda names: (triton.cdiv(x.numel(), names["block"]),)](x, out, x.numel())


device = triton.runtime.driver.active.get_active_torch_device()
assert device == torch.device("cuda", 0)
target = triton.runtime.driver.active.get_current_target()
assert (target.backend, target.arch) == ("cuda", 80)
facts = triton.runtime.driver.active.utils.get_device_properties(0)
assert facts["multiprocessor_count"] == 108
assert facts["warpSize"] == 32
assert facts["max_shared_mem"] > 48 * 1024

for size in (1000, 1024):
    x = torch.randn(size, device=device)
    out = torch.zeros(size, device=device)
    launch(x, out)
    torch.testing.assert_close(out, x)
    launch(x, out)
    torch.testing.assert_close(out, 2 * x)
assert add.best_config.kwargs == {"block": 256}, add.best_config

big = torch.randn(512, 512, device=device)
once = triton.testing.do_bench(lambda: big @ big)
assert once > 0
assert triton.testing.do_bench_cudagraph(lambda: big @ big) > 0
low, middle = triton.testing.do_bench(lambda: big @ big, quantiles=[0.2, 0.5])
assert low == middle
assert triton.testing.do_bench(lambda: launch(x, out), warmup=1, rep=1, return_mode="median") > 0
print("tuned")
