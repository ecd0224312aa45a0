"""The report of an out-of-memory error names the reason, the line and the held memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from failing_reports import EXPECTED, reports_of, require_first_line
from limited import MIB, limited_to
from torch import Tensor, nn

from anyrig.errors import MemoryTrackingError
from anyrig.memory import Cause, Kind, OutOfMemoryReport, explain_oom, recording, track

HERE = Path(__file__).parent
# Until 2.14, PyTorch keeps the workspaces of products, so less memory is left. From 2.15 on it
# allocates a workspace for each call, and the next output may take the place of a freed one.
STATE, CACHE, BATCHES, LOSSES, OUTPUTS, CELL = (
    ("480.00", "808.00", "976.00", "664.13", "968.13", "900.12")
    if torch.__version__ < (2, 15)
    else ("512.00", "816.00", "992.00", "656.00", "784.00", "900.00")
)
# The first remedy that each report lists.
REMEDIES = {
    "large_batch": "up to 640.00 MiB: half the batch: accumulate two halves",
    "large_activations": "up to 896.00 MiB: offload: with torch.autograd.graph.save_on_cpu()",
    "large_optimizer_state": f"up to {STATE} MiB: parameters, gradients and optimizer sharded over",
    "cache_list": f"up to {CACHE} MiB: release cache: remove the tensors that are no longer needed",
    "kept_batches": f"up to {BATCHES} MiB: release batches: remove the tensors that are no longer",
    "kept_losses": f"up to {LOSSES} MiB: release total: add loss.item() or loss.detach() instead",
    "kept_outputs": f"up to {OUTPUTS} MiB: release outputs: append output.detach()",
    "fragmentation": "up to 450.00 MiB: expandable segments: PYTORCH_CUDA_ALLOC_CONF=expandable",
    "evaluation_with_gradients": "up to 896.00 MiB: the line above: evaluate it under torch.no_gr",
    "growing_recurrent_state": f"up to {CELL} MiB: release c: call c.detach_()",
}


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    return reports_of("run_failing_programs.py")


@pytest.mark.parametrize("program", EXPECTED)
def test_the_first_line_names_the_reason_and_the_line(
    program: str, reports: dict[str, str]
) -> None:
    require_first_line(program, reports)


def test_the_second_line_has_what_other_processes_use(reports: dict[str, str]) -> None:
    second = reports["another_process"].splitlines()[1]
    assert second.endswith("of 1.00 GiB at that moment, and 800.00 MiB in use outside PyTorch.")
    second = reports["large_activations"].splitlines()[1]
    assert second.endswith("of 1.00 GiB at that moment, and 0 B in use outside PyTorch.")


def test_the_third_line_says_whether_it_was_full(reports: dict[str, str]) -> None:
    third = reports["large_activations"].splitlines()[2]
    assert third.startswith("This is no fragmentation: less is free than was requested, ")
    assert third.endswith(" outside them.")
    third = reports["fragmentation"].splitlines()[2]  # its first line has it
    assert third.split() == ["kind"]


@pytest.mark.parametrize("program", EXPECTED)
def test_the_last_lines_list_the_remedies(program: str, reports: dict[str, str]) -> None:
    _, head, remedies = reports[program].partition("Remedies, with what each saves of this memory")
    if program not in REMEDIES:
        assert not head
        return
    assert remedies.splitlines()[1].strip().startswith(REMEDIES[program])


def fail() -> None:
    kept = [torch.ones(2**20, device="cuda:0")]
    kept.append(torch.empty(2**44, device="cuda:0"))


@pytest.mark.gpus(1)
def test_the_error_is_the_same_with_the_report_attached() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as caught, explain_oom():
        fail()
    report = caught.value.report
    assert isinstance(report, OutOfMemoryReport)
    assert report.requested_bytes == 2**46
    assert report.device == torch.device("cuda:0")
    assert report.moment.line is not None
    assert report.moment.line.text == 'kept.append(torch.empty(2**44, device="cuda:0"))'
    assert report.moment.by_name()["kept[0]"] == 2**22
    assert report.reason.cause is Cause.REQUEST
    text = str(report)
    assert "64.00 TiB were requested at test_out_of_memory.py" in text
    assert text in (*getattr(caught.value, "__notes__", ()), *caught.value.args)


@pytest.mark.gpus(1)
@pytest.mark.parametrize("has_autocast", [False, True])
def test_the_report_offers_autocast_where_it_is_off(has_autocast: bool) -> None:
    def forward() -> None:
        net = nn.Linear(8, 8).to("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=has_autocast):
            y = net(torch.randn(2**6, 8, device="cuda")).repeat(2**14, 1)
            for _ in range(32):
                y = y.tanh()

    with limited_to(256 * MIB), pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        forward()
    names = {remedy.name for remedy in caught.value.report.remedies}
    assert "offload" in names
    assert ("mixed precision" in names) is not has_autocast


def fail_twice() -> None:
    try:
        torch.empty(2**45, device="cuda:0")
    except torch.OutOfMemoryError:
        kept = torch.ones(2**20, device="cuda:0")
    kept.add_(torch.empty(2**44, device="cuda:0"))


@pytest.mark.gpus(1)
def test_the_report_is_about_the_error_that_leaves_the_block() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        fail_twice()
    report = caught.value.report
    assert report.requested_bytes == 2**46
    assert report.moment.by_name()["kept"] == 2**22
    assert report.moment.line.text == 'kept.add_(torch.empty(2**44, device="cuda:0"))'


@pytest.mark.gpus(1)
def test_other_errors_and_success_pass_through() -> None:
    with explain_oom():
        torch.ones(3, device="cuda:0")
    with pytest.raises(KeyError) as caught, explain_oom():
        raise KeyError("x")
    assert not hasattr(caught.value, "report")
    with pytest.raises(torch.OutOfMemoryError) as raised, explain_oom():
        raise torch.OutOfMemoryError("of the program's own")
    assert not hasattr(raised.value, "report")
    with track(), pytest.raises(MemoryTrackingError, match="already being tracked"), explain_oom():
        pass


def compute_a_large_loss() -> None:
    net = nn.Linear(64, 64).to("cuda:0")
    y = net(torch.ones(2**12, 64, device="cuda:0")).exp()
    (y[:, :, None, None].expand(-1, -1, 2**16, 2**12) * 2).sum().backward()


@pytest.mark.gpus(1)
def test_a_large_loss_in_training_is_no_evaluation() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        compute_a_large_loss()
    assert caught.value.report.moment.by_kind()[Kind.ACTIVATIONS] > 0
    assert caught.value.report.reason.cause is Cause.REQUEST


def keep_losses(net: nn.Module, x: Tensor) -> None:
    total = torch.zeros((), device="cuda:0")
    while True:
        total = total + net(x).exp().sum()  # HERE


def keep_outputs(net: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    outputs = []
    while True:
        output = net(x)
        output.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output)  # HERE


def keep_tensors(net: nn.Module, x: Tensor) -> None:
    kept = {}
    with torch.no_grad():
        while True:
            kept[len(kept)] = net(x) + 1
            kept.update({})  # HERE


@pytest.mark.gpus(1)
@pytest.mark.parametrize(
    ("program", "cause", "most_operators"),
    [
        (keep_losses, Cause.KEPT_LOSSES, 60),
        (keep_outputs, Cause.KEPT_OUTPUTS, 600),
        (keep_tensors, Cause.KEPT_TENSORS, 60),
    ],
)
def test_a_condensed_recording_finds_the_same_reason(
    program: Any, cause: Cause, most_operators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MOST_OPERATORS", most_operators)
    net = nn.Linear(16, 16).to("cuda:0")
    x = torch.randn(2**16, 16, device="cuda:0")
    block = explain_oom()
    with limited_to(256 * MIB), pytest.raises(torch.OutOfMemoryError) as caught, block:
        program(net, x)
    assert block._recording._log.count > 1.5 * most_operators
    assert len(block._recording._log.origins) < 1.1 * most_operators
    report = caught.value.report
    assert report.reason.cause is cause
    assert report.reason.bytes > 200 * MIB
    assert report.reason.line.text.endswith("# HERE")
    if cause is Cause.KEPT_OUTPUTS:  # their backward passes have ended
        kept = {h.kind for h in report.moment.holdings if (h.name or "").startswith("outputs[")}
        assert kept == {Kind.OTHER}


def branches() -> tuple[nn.Module, nn.Module, Tensor]:
    made = [
        nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Tanh())])
        for _ in range(2)
    ]
    a, b = (each.to("cuda:0") for each in made)
    return a, b, torch.randn(2**16, 64, device="cuda:0")


def add_on_the_stack(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    (a(x) + b(x)).sum().backward()


def pass_on_the_stack(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    torch.cat((a(x), b(x)), 1).sum().backward()


def list_on_the_stack(a: nn.Module, b: nn.Module, x: Tensor) -> None:
    torch.cat([each(x) for each in (a, b)], 1).sum().backward()


@pytest.mark.gpus(1)
@pytest.mark.parametrize("program", [add_on_the_stack, pass_on_the_stack, list_on_the_stack])
def test_what_only_the_stack_holds_is_an_activation(program: Any) -> None:
    a, b, x = branches()
    with limited_to(256 * MIB), pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        program(a, b, x)
    kinds = caught.value.report.moment.by_kind()
    assert kinds[Kind.ACTIVATIONS] > 200 * MIB
    assert kinds.get(Kind.TEMPORARIES, 0) <= 16 * MIB


def use_up_graphs(net: nn.Module, large: nn.Module, x: Tensor) -> None:
    losses = []
    for _ in range(8):
        loss = net(x[:64]).sum()
        loss.backward()
        losses.append(loss)
    large(x).sum().backward()


@pytest.mark.gpus(1)
def test_losses_whose_graphs_are_used_up_are_not_blamed() -> None:
    a, b, x = branches()
    large = nn.Sequential(a, b, b, b)
    with limited_to(256 * MIB), pytest.raises(torch.OutOfMemoryError) as caught, explain_oom():
        use_up_graphs(a, large, x)
    assert caught.value.report.reason.cause not in (Cause.KEPT_LOSSES, Cause.KEPT_OUTPUTS)
