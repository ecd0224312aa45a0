"""`track` finds names, modules, lines, steps and older memory, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools

import pytest
import torch
from footprint_of_device import on
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from trainings import prepare

from anyrig.errors import MemoryTrackingError
from anyrig.memory import Footprint, Kind, track

CUDA = pytest.param("cuda", marks=pytest.mark.gpus(1))
DEVICES = pytest.mark.parametrize("device", ["cpu", CUDA])


@DEVICES
def test_parameters_gradients_and_state_have_the_names_of_the_model(device: str) -> None:
    # So wide that the peak is in the optimizer's step, not in a product with a workspace of 32 MiB.
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(3))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    with track() as footprint:
        model(torch.randn(8, 2048, device=device)).sum().backward()
        optimizer.step()
    names = on(device, footprint).peak.by_name()
    for name, parameter in model.named_parameters():
        for of in (name, f"{name}.grad", f"exp_avg of {name}", f"exp_avg_sq of {name}"):
            assert names[of] >= parameter.nbytes
    modules = on(device, footprint).peak.by_module(Kind.PARAMETERS)
    assert modules.keys() >= {"0", "1", "2"}  # other tests may have left models on the CPU


@pytest.mark.whole_gpu
@pytest.mark.gpus(1)
def test_what_pytorch_has_reserved_is_not_outside() -> None:
    kept = torch.ones(2**20, device="cuda")
    with track() as footprint:
        kept.add_(1)
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    reserved_bytes = torch.cuda.memory_reserved()
    assert reserved_bytes >= kept.nbytes
    assert on("cuda", footprint).outside_bytes == total_bytes - free_bytes - reserved_bytes


class Raising(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError


@DEVICES
def test_memory_after_a_forward_that_raised_belongs_to_no_module(device: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), Raising()).to(device)
    with track() as footprint:
        with contextlib.suppress(ArithmeticError):
            net(torch.ones(2, 4, device=device))
        later = torch.ones(2**20, device=device)
    (holding,) = [h for h in on(device, footprint).end.holdings if h.name == "later"]
    assert holding.bytes == later.nbytes
    assert holding.module is None


class WithOneUpdate(torch.optim.Optimizer):
    """Frees its update when `step` returns, after the last operator."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        (parameter,) = self.param_groups[0]["params"]
        update = parameter.grad * 0.1
        parameter.sub_(update)


@DEVICES
def test_what_a_step_of_the_optimizer_frees_at_its_end_is_temporary(device: str) -> None:
    weight = nn.Parameter(torch.ones(14 * 2**18, device=device))  # no other test has 14 MiB
    optimizer = WithOneUpdate([weight], {})
    with track() as footprint:
        weight.sum().backward()
        optimizer.step()
    peak = on(device, footprint).peak
    assert peak.by_kind()[Kind.TEMPORARIES] == weight.nbytes
    assert Kind.OTHER not in {h.kind for h in peak.holdings if h.bytes == weight.nbytes}


@pytest.mark.gpus(1)
def test_a_workspace_is_none_of_the_activations_of_an_older_graph() -> None:
    x = torch.ones(8, 8, device="cuda", requires_grad=True)
    graph = x.exp()
    with torch.cuda.stream(torch.cuda.Stream()), track() as footprint:
        torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")  # cuBLAS begins
    # The product's workspace, which PyTorch keeps until 2.14, and frees at once from 2.15 on.
    kinds = on("cuda", footprint).peak.by_kind()
    assert kinds[Kind.WORKSPACES] > on("cuda", footprint).start.by_kind().get(Kind.WORKSPACES, 0)
    assert graph.grad_fn is not None


@DEVICES
def test_activations_have_the_module_and_the_line_that_made_them(device: str) -> None:
    net = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 1)).to(device)
    x = torch.randn(100, 64, device=device)
    with track() as footprint:
        y = net(x)
        z = y.exp() * y.sin()
        z.sum().backward()
    peak = on(device, footprint).peak
    relu = max((h for h in peak.holdings if h.kind is Kind.ACTIVATIONS), key=lambda h: h.bytes)
    assert relu.module == "1"
    assert relu.line is not None
    assert relu.line.text == "y = net(x)"
    assert relu.phase == "forward"


@DEVICES
def test_a_backward_pass_has_the_line_of_its_forward_pass(device: str) -> None:
    w = torch.randn(1024, device=device, requires_grad=True)
    with track() as footprint:
        loss = torch.cumsum(w.exp(), 0).sum()
        loss.backward()
    end = on(device, footprint).end
    (gradient,) = (h for h in end.holdings if h.phase == "backward" and h.bytes == w.nbytes)
    assert gradient.line is not None
    assert gradient.line.text == "loss = torch.cumsum(w.exp(), 0).sum()"


@DEVICES
def test_variables_are_named(device: str) -> None:
    with track() as footprint:
        kept = {"keys": [torch.ones(1024, device=device), torch.ones(512, device=device)]}
    names = on(device, footprint).end.by_name()
    assert [names[f"kept['keys'][{index}]"] for index in (0, 1)] == [4096, 2048]
    del kept


def test_global_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "of_this_module", torch.ones(1024))
    with track() as footprint:
        pass
    assert on("cpu", footprint).end.by_name()["of_this_module"] == 4096


@DEVICES
def test_what_existed_before_is_explained(device: str) -> None:
    training = prepare("mlp", "adamw", "plain", device)
    training.step()
    x = torch.randn(5, 64, device=device)
    loss = training.model(x).sum()
    with track() as footprint:
        pass
    start = on(device, footprint).start
    assert start.by_name()["exp_avg of 0.weight"] == 64 * 128 * 4
    assert start.by_kind()[Kind.PARAMETERS] >= sum(p.nbytes for p in training.model.parameters())
    assert start.by_name()["x"] >= x.nbytes
    # Memory that only a graph holds. Workspaces that PyTorch keeps until 2.14 are larger.
    activations = [h.bytes for h in start.holdings if h.kind is Kind.ACTIVATIONS]
    assert activations.count(5 * 128 * 4) >= 2
    loss.backward()


@DEVICES
def test_a_graph_that_its_backward_pass_leaves_holds_no_activations(device: str) -> None:
    net = nn.Sequential(nn.Linear(64, 320), nn.ReLU(), nn.Linear(320, 1)).to(device)
    loss = net(torch.randn(128, 64, device=device)).sum()
    with track() as footprint:
        loss.backward(retain_graph=True)
        torch.ones(8, device=device)
    found = on(device, footprint)
    kinds = [
        [h.kind for h in moment.holdings if h.bytes == 128 * 320 * 4 and h.name is None]
        for moment in (found.start, found.end)
    ]
    assert kinds == [[Kind.ACTIVATIONS], [Kind.OTHER]]


@DEVICES
def test_every_step_has_a_footprint(device: str) -> None:
    training = prepare("mlp", "adamw", "plain", device)
    kept = []
    with track(every="step") as footprint:
        for _ in range(4):
            training.step()
            kept.append(torch.ones(1024, device=device))
    assert len(footprint.steps) == 4
    others = [on(device, step).peak.by_kind().get(Kind.OTHER, 0) for step in footprint.steps]
    assert [b - a for a, b in itertools.pairwise(others[1:])] == [4096, 4096]
    for before, after in itertools.pairwise(footprint.steps):
        assert on(device, before).end.allocated_bytes == on(device, after).start.allocated_bytes
        assert Kind.WORKSPACES not in on(device, after).start.by_kind() or device == "cuda"
    # Lines outlive the step in which they allocated.
    last = on(device, footprint.steps[-1]).start
    assert any(
        holding.line and holding.line.text.startswith("kept.append") for holding in last.holdings
    )
    assert footprint.peak_bytes == max(step.peak_bytes for step in footprint.steps)


@DEVICES
def test_a_footprint_survives_an_error(device: str) -> None:
    footprint = Footprint()

    def fail() -> None:
        nonlocal footprint
        with track() as footprint:
            x = torch.ones(2**16, device=device)
            x[2**16]

    with pytest.raises(IndexError):
        fail()
    assert on(device, footprint).peak.by_line()
    assert on(device, footprint).peak.by_name()["x"] == 2**18


def hooks() -> list[int]:
    """Return how many hooks there are for all modules and optimizers of this process."""
    return [
        len(nn.modules.module._global_forward_pre_hooks),
        len(nn.modules.module._global_forward_hooks),
        len(_global_optimizer_pre_hooks),
        len(_global_optimizer_post_hooks),
    ]


@pytest.mark.gpus(1)
def test_nothing_is_left_of_the_tracking() -> None:
    training = prepare("mlp", "sgd", "plain", "cuda")
    before = hooks()
    with track():
        training.step()
    assert not torch._C._cuda_isHistoryEnabled()
    assert _get_current_dispatch_mode_stack() == []
    with track(every="step"):
        training.step()
    assert hooks() == before


@pytest.mark.gpus(1)
def test_memory_is_not_kept_by_the_tracking() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    with track() as footprint:
        x = torch.ones(2**20, device="cuda")
        del x
        gc.collect()
        assert torch.cuda.memory_allocated() == before
    assert footprint.devices[0].end.allocated_bytes == before


@pytest.mark.gpus(1)
def test_the_programs_own_recording_goes_on() -> None:
    torch.cuda.memory._record_memory_history(stacks="python")  # "all" leaves addr2line running
    try:
        own = torch.ones(1000, device="cuda")
        with track() as footprint:
            other = torch.ones(2000, device="cuda")
        assert torch._C._cuda_isHistoryEnabled()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        assert {own.data_ptr(), other.data_ptr()} <= {entry["addr"] for entry in trace}
        lines = footprint.devices[0].end.by_line()
        assert sum(count for line, count in lines.items() if line is not None) == 8192
    finally:
        torch.cuda.memory._record_memory_history(None)


@pytest.mark.gpus(2)
def test_each_gpu_has_its_own_figures() -> None:
    with track() as footprint:
        first = torch.ones(1000, device="cuda:0")
        second = torch.ones(2000, device="cuda:1")
        (second * 2).sum()
    by_device = {str(each.device): each.end.by_line() for each in footprint.devices}
    texts = {
        device: {line.text: count for line, count in lines.items() if line is not None}
        for device, lines in by_device.items()
    }
    assert texts["cuda:0"]['first = torch.ones(1000, device="cuda:0")'] == 4096
    assert texts["cuda:1"]['second = torch.ones(2000, device="cuda:1")'] == 8192
    peaks = [each.peak.allocated_bytes for each in footprint.devices]
    assert footprint.peak_bytes == sum(peaks) > max(peaks)
    del first


@pytest.mark.gpus(2)
def test_a_gpu_that_holds_nothing_has_no_footprint() -> None:
    torch.ones(8, device="cuda:1").sum()
    gc.collect()
    with track() as footprint:
        first = torch.ones(8, device="cuda:0")
    found = {str(each.device) for each in footprint.devices}
    assert first.is_cuda
    assert "cuda:0" in found
    assert ("cuda:1" in found) is (torch.cuda.memory_allocated(1) > 0)


def test_tracking_twice_at_once_is_refused() -> None:
    with track(), pytest.raises(MemoryTrackingError, match="already being tracked"), track():
        pass
    with track():
        pass


def test_another_interval_is_refused() -> None:
    with pytest.raises(MemoryTrackingError, match="every is 'epoch'"):
        track(every="epoch")  # type: ignore[arg-type]


SPARSE = {
    torch.sparse_coo: lambda x: [x._indices(), x._values()],
    torch.sparse_csr: lambda x: [x.crow_indices(), x.col_indices(), x.values()],
    torch.sparse_csc: lambda x: [x.ccol_indices(), x.row_indices(), x.values()],
}


@pytest.mark.filterwarnings("ignore:Sparse C")
@pytest.mark.parametrize("layout", SPARSE)
def test_a_sparse_tensor_has_all_of_its_parts(layout: torch.layout) -> None:
    with track() as footprint:
        of_all_parts = torch.eye(300).to_sparse(layout=layout)
    parts = SPARSE[layout](of_all_parts)
    assert on("cpu", footprint).end.by_name()["of_all_parts"] == sum(
        part.untyped_storage().nbytes() for part in parts
    )


class Generator(nn.Sequential):
    pass


class Discriminator(nn.Sequential):
    pass


def test_of_two_models_the_names_in_the_second_begin_with_its_class() -> None:
    first, second = Generator(nn.Linear(8, 8)), Discriminator(nn.Linear(8, 8))
    with track() as footprint:
        second(first(torch.ones(2, 8))).sum().backward()
    names = on("cpu", footprint).end.by_name()
    assert names["Discriminator.0.weight"] == names["Discriminator.0.weight.grad"] == 256
    modules = on("cpu", footprint).end.by_module(Kind.PARAMETERS)
    assert modules["Discriminator.0"] == 256 + 32


def test_the_state_of_a_parameter_of_no_module_has_its_own_name_only() -> None:
    lone = nn.Parameter(torch.ones(999))
    optimizer = torch.optim.Adam([lone])
    with track() as footprint:
        lone.sum().backward()
        optimizer.step()
    end = on("cpu", footprint).end
    own = {(h.kind, h.name) for h in end.holdings if h.bytes == 4 * 999}
    assert own == {
        *((Kind.PARAMETERS, None), (Kind.GRADIENTS, None)),
        *((Kind.OPTIMIZER_STATE, "exp_avg"), (Kind.OPTIMIZER_STATE, "exp_avg_sq")),
    }
