"""A report of an out-of-memory error without tracking: what the variables and the message show."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from limited import MIB, limited_to
from torch import nn

from anyrig.memory import Cause, Kind, OutOfMemoryReport
from anyrig.memory.out_of_memory import list_stacks
from anyrig.memory.untracked import report_untracked

pytestmark = pytest.mark.gpus(1)


def report_of(program: object) -> OutOfMemoryReport:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        program()  # type: ignore[operator]
    report = report_untracked(caught.value, list_stacks(caught.value.__traceback__))
    assert report is not None
    assert not torch._C._cuda_isHistoryEnabled()
    return report


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    with limited_to(256 * MIB):
        yield


@pytest.mark.whole_gpu
def test_kinds_and_names_of_what_the_functions_hold() -> None:
    net = nn.Linear(2**10, 2**10).to("cuda")

    def train() -> None:
        x = torch.randn(2**10, 2**10, device="cuda")
        loss = net(x).exp().sum()
        loss.backward()
        loss = net(x).exp().sum()  # its graph holds activations
        # More than the limit: the tensors above may fit into segments that earlier tests left.
        torch.empty(320 * MIB, dtype=torch.uint8, device="cuda")  # HERE

    report = report_of(train)
    assert report.device == torch.device("cuda:0")
    names, kinds = report.moment.by_name(), report.moment.by_kind()
    assert names["x"] == names["weight"] == names["weight.grad"] == 2**22
    assert kinds[Kind.PARAMETERS] >= 2**22
    assert report.moment.line is not None
    assert report.moment.line.text.endswith("# HERE")
    assert report.reason.line == report.moment.line
    assert report.freed_bytes == 0
    free, total = torch.cuda.mem_get_info()
    assert report.outside_bytes == total - free - torch.cuda.memory_reserved()
    assert "offload" in {remedy.name for remedy in report.remedies}
    assert report.lasting is not None
    assert report.lasting.parameter_bytes > 0
    assert "line" not in {row.split()[0] for row in str(report).splitlines() if row.strip()}


def test_memory_of_a_graph_is_activations() -> None:
    def forward() -> None:
        y = torch.zeros(4 * MIB, device="cuda", requires_grad=True)
        for _ in range(8):
            y = y.exp()

        torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")

    report = report_of(forward)
    kinds = [each.kind for each in report.moment.holdings if each.bytes == 16 * MIB]
    assert sorted(kinds) == [Kind.ACTIVATIONS] * 7 + [Kind.OTHER] * 2
    assert report.reason.cause is Cause.ACTIVATIONS


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("samples", "has_halves"), [(1, False), (2, True)])
def test_only_a_batch_of_several_samples_is_halved(
    samples: int, has_halves: bool, by_name: bool
) -> None:
    layers = [nn.Sequential(nn.Linear(2**8, 2**8), nn.Tanh()) for _ in range(40)]
    net = nn.Sequential(*layers).to("cuda")
    x = torch.randn(samples, 2**13 // samples, 2**8, device="cuda")
    report = report_of(lambda: net(input=x) if by_name else net(x))
    assert report.reason.cause is Cause.ACTIVATIONS
    assert ("half the batch" in {remedy.name for remedy in report.remedies}) is has_halves


@pytest.mark.parametrize("has_autocast", [False, True])
def test_autocast_is_no_remedy_where_it_is_on(has_autocast: bool) -> None:
    net = nn.Linear(8, 8).to("cuda")
    x = torch.randn(2**6, 8, device="cuda")

    def forward() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=has_autocast):
            y = net(x).repeat(2**14, 1)
            for _ in range(32):
                y = y.tanh()

    report = report_of(forward)
    names = {remedy.name for remedy in report.remedies}
    assert ("mixed precision" in names) is not has_autocast


def test_a_request_larger_than_the_device() -> None:
    report = report_of(lambda: torch.empty(2**46, device="cuda"))
    assert report.reason.cause is Cause.REQUEST
    assert report.requested_bytes == 2**48
    assert str(report).startswith("cuda:0 ran out of memory: one request of 256.00 TiB is larger")


def test_a_growing_container() -> None:
    def fill() -> None:
        cache = {}
        for key in range(100):
            cache.setdefault(key, torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))  # HERE

    report = report_of(fill)
    assert report.reason.cause is Cause.KEPT_TENSORS
    assert report.reason.sentence.startswith("cache keeps ")
    assert report.reason.line is not None
    assert report.reason.line.text.endswith("# HERE")


def test_fragmentation_is_that_of_the_error() -> None:
    def fragment() -> None:
        pieces = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(60)]
        del pieces[::2]
        torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")

    assert report_of(fragment).reason.cause is Cause.FRAGMENTATION


class HoldsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return x * 1

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")


def test_memory_that_the_error_freed_is_not_fragmentation() -> None:
    def backward() -> None:
        x = torch.zeros(8 * MIB, device="cuda", requires_grad=True)
        # While the second factor's gradient is computed, the engine holds that of the first.
        y = x.exp() * HoldsInBackward.apply(x)
        y.backward(torch.zeros(8 * MIB, device="cuda"))

    report = report_of(backward)
    assert report.reason.cause is not Cause.FRAGMENTATION
    assert report.freed_bytes == pytest.approx(32 * MIB, rel=0.05)
    assert "freed since" in str(report)


def test_an_optimizer_step() -> None:
    parameter = nn.Parameter(torch.zeros(24 * MIB, device="cuda"))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW([parameter])
    report = report_of(optimizer.step)
    assert report.reason.cause is Cause.OPTIMIZER_STATE
    assert report.reason.bytes == report.requested_bytes == 96 * MIB


def test_an_error_of_the_programs_own_has_no_report() -> None:
    assert report_untracked(torch.OutOfMemoryError("mine"), []) is None


def keep_outputs_in_a_list(net: nn.Module) -> None:
    outputs = []
    while True:
        outputs.append(net(torch.randn(2**12, 2**8, device="cuda")))  # HERE


def keep_losses_in_a_list(net: nn.Module) -> None:
    losses = []
    while True:
        losses.append(net(torch.randn(2**12, 2**8, device="cuda")).sum())  # HERE


def keep_outputs_in_a_dict(net: nn.Module) -> None:
    kept: dict[str, list[torch.Tensor]] = {"outputs": []}
    while True:
        kept["outputs"].append(net(torch.randn(2**12, 2**8, device="cuda")))
        kept.update({})  # HERE


class Keeping(nn.Module):
    """A module that keeps its outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        self.kept.append(y)  # HERE
        return y


def keep_outputs_in_the_model(net: nn.Module) -> None:
    model = Keeping(net)
    while True:
        model(torch.randn(2**12, 2**8, device="cuda"))


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (keep_outputs_in_a_list, Cause.KEPT_OUTPUTS),
        (keep_losses_in_a_list, Cause.KEPT_LOSSES),
        (keep_outputs_in_a_dict, Cause.KEPT_OUTPUTS),
        (keep_outputs_in_the_model, Cause.KEPT_OUTPUTS),
    ],
)
def test_what_keeps_graphs_is_named_with_its_cure(
    program: Callable[[nn.Module], None], cause: Cause
) -> None:
    layers = [nn.Sequential(nn.Linear(2**8, 2**8), nn.Tanh()) for _ in range(3)]
    net = nn.Sequential(*layers).to("cuda")
    report = report_of(lambda: program(net))
    assert report.reason.cause is cause
    assert report.reason.line is not None
    assert report.reason.line.text.endswith("# HERE")
    (remedy,) = report.remedies
    assert "detach()" in remedy.advice


def test_a_list_within_a_call_is_not_blamed() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2**8, 2**8) for _ in range(100)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1]).tanh())
            return features[-1]

    net = Features().to("cuda")
    report = report_of(lambda: net(torch.randn(2**12, 2**8, device="cuda")))
    assert report.reason.cause not in (Cause.KEPT_OUTPUTS, Cause.KEPT_LOSSES)
