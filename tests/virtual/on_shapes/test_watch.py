"""What a rehearsal reports about programs whose time is computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpu_rates import (
    COPY_START_SECONDS,
    LAUNCH_SECONDS,
    NVLINK,
    PCIE,
    VALUES,
    product_gpu_seconds,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anyrig.rehearsal import Report, watch
from anyrig.rehearsal.facts import Facts, StepFacts

SIZE = 8192
PRODUCT = product_gpu_seconds(SIZE)
HERE = Path(__file__).name


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def square(device: int = 0) -> Tensor:
    return torch.empty(SIZE, SIZE, device=device, dtype=torch.bfloat16)


def report_of(work: Callable[[], object], steps: int = 3) -> Report:
    """Watch steps of `work` and of an optimizer that takes almost no time."""
    parameter = nn.Parameter(torch.zeros(1, device="cuda"))
    parameter.grad = torch.zeros(1, device="cuda")
    optimizer = torch.optim.SGD([parameter])
    torch.cuda.synchronize()
    with watch() as report:
        for _ in range(steps):
            work()
            optimizer.step()
    assert [step.number for step in report.steps] == [*range(1, steps + 1)]
    for step in report.steps:
        assert sum(piece.seconds for piece in step.path) == pytest.approx(step.seconds, rel=1e-3)
    return report


def seconds_by(step: StepFacts, facts: Facts, attribute: str = "kind") -> dict[str, float]:
    """Return the seconds of a step's critical path by the kind, name or line of its pieces."""
    seconds: dict[str, float] = {}
    for piece in step.path:
        found = getattr(piece, attribute)
        name = found if isinstance(found, str) else "" if found is None else facts.texts[found]
        seconds[name] = seconds.get(name, 0) + piece.seconds
    return seconds


def test_a_product() -> None:
    x = square()
    report = report_of(lambda: x @ x)
    step = report.steps[-1]
    assert step.seconds == close(PRODUCT)
    assert seconds_by(step, report.facts)["kernel"] == close(PRODUCT)
    assert seconds_by(step, report.facts, "name")["aten::mm"] == close(PRODUCT)
    assert step.waits == 0
    (device,) = (one for one in report.facts.devices if one.index == 0)
    assert device.busy_share == close(1)
    assert device.busy_share + device.waiting_share + device.idle_share == pytest.approx(1)
    longest = max(step.path, key=lambda piece: piece.seconds)
    assert longest.line is not None
    assert report.facts.texts[longest.line].startswith(f"{HERE}:")


def test_a_product_and_a_copy_that_overlap() -> None:
    x, side = square(), torch.cuda.Stream()
    host = torch.empty(2**29, dtype=torch.uint8, pin_memory=True)

    def copy_and_multiply() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.to("cuda", non_blocking=True)
        x @ x
        torch.cuda.current_stream().wait_stream(side)
        x @ x

    report = report_of(copy_and_multiply)
    copy = COPY_START_SECONDS + 2**29 / PCIE
    assert copy > PRODUCT
    step = report.steps[-1]
    assert step.seconds == close(copy + PRODUCT)
    by_kind = seconds_by(step, report.facts)
    assert by_kind["copy"] == close(copy)
    assert by_kind["kernel"] == close(PRODUCT)
    (device,) = (one for one in report.facts.devices if one.index == 0)
    assert device.busy_share == close(2 * PRODUCT / (copy + PRODUCT))
    assert device.waiting_share == close((copy - PRODUCT) / (copy + PRODUCT))


def test_two_devices_in_sequence() -> None:
    x, y = square(), square(1)

    def through_both() -> None:
        y.copy_(x @ x)
        y @ y
        torch.cuda.current_stream(0).wait_stream(torch.cuda.current_stream(1))

    report = report_of(through_both)
    step = report.steps[-1]
    copy = x.nbytes / NVLINK
    assert step.seconds == close(2 * PRODUCT + copy)
    by_kind = seconds_by(step, report.facts)
    assert by_kind["kernel"] == close(2 * PRODUCT)
    assert by_kind["copy"] == close(copy)
    for index in (0, 1):
        (device,) = (one for one in report.facts.devices if one.index == index)
        assert device.busy_share == close(PRODUCT / step.seconds)
    flows = [flow for flow in report.facts.intervals.flow if flow >= 0]
    assert len(flows) == 2 * len(set(flows)) == 6


def test_a_pipeline_of_two_stages() -> None:
    x, weight, parts = square(), square(1), 4

    def two_stages() -> None:
        for _ in range(parts):
            (x @ x).to("cuda:1", non_blocking=True) @ weight
        torch.cuda.current_stream(0).wait_stream(torch.cuda.current_stream(1))

    report = report_of(two_stages)
    step = report.steps[-1]
    # The first stage sends each part before it computes the next; the last part goes on alone.
    copy = x.nbytes / NVLINK
    assert step.seconds == close(parts * (PRODUCT + copy) + PRODUCT)
    by_kind = seconds_by(step, report.facts)
    assert by_kind["kernel"] == close((parts + 1) * PRODUCT)
    assert by_kind["copy"] == close(parts * copy)
    for index in (0, 1):
        (device,) = (one for one in report.facts.devices if one.index == index)
        assert device.busy_share == close(parts * PRODUCT / step.seconds)


def test_a_ring_all_reduce() -> None:
    tensors = [torch.empty(2**32, device=device, dtype=torch.uint8) for device in range(8)]
    report = report_of(lambda: torch.cuda.nccl.all_reduce(tensors))
    step = report.steps[-1]
    ring = 2 * 7 / 8 * 2**32 / (VALUES["collective.bandwidth_fraction"] * NVLINK)
    assert step.seconds == close(ring)
    assert seconds_by(step, report.facts)["collective"] == close(ring)
    kinds = report.facts.intervals.kind
    collectives = [i for i, kind in enumerate(kinds) if report.facts.texts[kind] == "collective"]
    assert len(collectives) == 3 * 8
    assert len({report.facts.intervals.flow[i] for i in collectives}) == 3


def test_launches_that_the_device_waits_for() -> None:
    x = torch.zeros(1, device="cuda")

    def launch_often() -> None:
        for _ in range(200):
            x.add_(1)

    report = report_of(launch_often)
    step = report.steps[-1]
    assert step.seconds == pytest.approx(200 * LAUNCH_SECONDS, rel=0.03)
    assert seconds_by(step, report.facts)["host"] > 0.9 * step.seconds


def test_waits_of_the_host_lead_to_what_it_waits_for() -> None:
    x = square()

    def multiply_and_look() -> None:
        y = x @ x
        y[0, 0].item()
        x @ x

    report = report_of(multiply_and_look)
    step = report.steps[-1]
    assert step.waits == 1
    by_kind = seconds_by(step, report.facts)
    assert by_kind["kernel"] == close(2 * PRODUCT)
    assert "wait" not in by_kind


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIZE, SIZE, bias=False, device="cuda", dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[: SIZE // 2] * 2


def test_backward_work_has_the_module_and_the_line_of_its_forward() -> None:
    model = nn.Sequential(Doubled(), Doubled())
    optimizer = torch.optim.SGD(model.parameters())
    x = square()
    with watch() as report:
        for _ in range(2):
            model(x).float().sum().backward()
            optimizer.step()
    facts, intervals = report.facts, report.facts.intervals
    where: dict[str, set[tuple[str, str]]] = {}
    for name, module, line in zip(intervals.name, intervals.module, intervals.line, strict=True):
        texts = tuple("" if number < 0 else facts.texts[number] for number in (module, line))
        where.setdefault(facts.texts[name], set()).add(texts)  # type: ignore[arg-type]
    forward = Doubled.forward.__code__.co_firstlineno + 1
    assert {("0.inner", f"{HERE}:{forward}"), ("1.inner", f"{HERE}:{forward}")} == where["aten::mm"]
    # The backward of the slice, whose forward launches nothing.
    assert {("0", f"{HERE}:{forward}"), ("1", f"{HERE}:{forward}")} <= where["aten::zero_"] | (
        where.get("aten::zeros", set()) | where.get("aten::copy_", set())
    )


def test_memory_over_time() -> None:
    torch._C._cuda_clearCublasWorkspaces()  # the product allocates one, kept or not
    before = torch.cuda.memory_allocated()
    x = square()
    with watch() as report:
        y = x @ x
        del y
    cublas_workspace = torch._C._cuda_getCublasWorkspaceSize()
    peak = report.facts.devices[0].peak
    reserved = torch.cuda.memory_reserved()
    assert peak.total_bytes == reserved + peak.context_bytes + peak.collective_bytes
    assert peak.tensor_bytes + peak.workspace_bytes == before + 2 * x.nbytes + cublas_workspace
    assert report.peak_bytes(0) == peak.total_bytes
    assert peak.headroom_bytes == report.facts.devices[0].capacity_bytes - peak.total_bytes
    (memory,) = (one for one in report.facts.memory if one.device == 0)
    assert max(memory.tensor_bytes) >= peak.tensor_bytes
    assert memory.tensor_bytes[-1] == peak.tensor_bytes - x.nbytes


def test_samples_are_those_of_the_loader() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(12, 4)), batch_size=4)
    batches = iter(loader)
    report = report_of(lambda: next(batches)[0].to("cuda"))
    assert [step.samples for step in report.steps] == [4, 4, 4]
    typical = report.facts.typical_step
    assert typical is not None
    assert typical.samples_per_second == close(4 / typical.seconds)
    assert all(step.loader_wall_seconds > 0 for step in report.steps)


def test_the_first_of_several_optimizers_ends_steps() -> None:
    first, second = (nn.Linear(4, 4, device="cuda") for _ in range(2))
    optimizers = [torch.optim.SGD(module.parameters()) for module in (first, second)]
    with watch() as report:
        for _ in range(3):
            for module, optimizer in zip((first, second), optimizers, strict=True):
                module(torch.ones(2, 4, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert len(report.steps) == 3
