"""Waits of the host, and copies from it: R02, R03 and R04."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from promises import BF16, Layers, check_promise, line_of, on_gpu, rehearse, training
from torch import Tensor, nn

import anyrig

SMALL = 1024  # steps in which a launch matters


def quiet() -> Callable[[], object]:
    return training(Layers(SMALL), on_gpu(2 * SMALL, SMALL))


def reads_a_loss() -> Callable[[], object]:
    step = training(Layers(SMALL), on_gpu(2 * SMALL, SMALL))

    def read() -> None:
        loss = step()
        print(f"loss {loss.item():.3f}")  # the line

    return read


def test_reading_a_loss() -> None:
    finding = check_promise("R04", reads_a_loss(), quiet(), line_of(reads_a_loss, "# the line"))
    assert "once in a step" in finding.text
    line = line_of(reads_a_loss, "# the line")
    assert finding.remedy.startswith(f"At {line}, keep the value on the GPU, as in total += loss.d")
    assert "synchronize" not in finding.remedy


def waits_twice() -> Callable[[], object]:
    step = training(Layers(SMALL), on_gpu(2 * SMALL, SMALL))

    def wait() -> None:
        loss = step()
        torch.cuda.synchronize()  # the longer wait
        loss.cpu()  # the other

    return wait


def test_waits_on_several_lines_are_one_finding() -> None:
    finding = check_promise("R04", waits_twice(), quiet(), line_of(waits_twice, "# the longer"))
    longer, other = (line_of(waits_twice, f"# the {which}") for which in ("longer", "other"))
    assert finding.remedy.startswith(f"At {other}, keep the value on the GPU, ")
    assert finding.remedy.endswith(f"; at {longer}, remove torch.cuda.synchronize().")
    assert f"2 times in a step, also at {line_of(waits_twice, '# the other')}" in finding.text


def from_host(place: Callable[[Tensor], Tensor], blocks: bool) -> Callable[[], Tensor]:
    host = place(torch.ones(4096, 4096, dtype=BF16))
    return lambda: host.to("cuda", non_blocking=not blocks)  # the copy


def same(tensor: Tensor) -> Tensor:
    return tensor


def test_a_copy_without_pinned_memory_blocks() -> None:
    check_promise(
        "R03",
        training(Layers(), from_host(same, blocks=False)),
        training(Layers(), from_host(Tensor.pin_memory, blocks=False)),
        line_of(from_host, "# the copy"),
    )


class SmallThenLarge(nn.Module):
    """Small kernels, whose launches show unless the host is ahead, and large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = Layers(256, 10), Layers(2048, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.small(x[:64, :256]).sum() + self.large(x).sum()


def test_launches_that_show_because_a_copy_blocks_are_no_finding() -> None:
    host = torch.ones(4096, 2048, dtype=BF16)
    step = training(SmallThenLarge(), lambda: host.to("cuda", non_blocking=True))
    assert [finding.code for finding in rehearse(step).findings] == ["R03"]


@pytest.mark.parametrize("place", [same, Tensor.pin_memory])
def test_copies_that_could_run_ahead(place: Callable[[Tensor], Tensor]) -> None:
    ahead = iter(anyrig.prefetch([torch.ones(4096, 4096, dtype=BF16)] * 20, "cuda:0"))
    check_promise(
        "R02",
        training(Layers(), from_host(place, blocks=True)),
        training(Layers(), lambda: next(ahead)),
        line_of(from_host, "# the copy"),
    )


def test_a_wait_that_costs_little_is_no_finding() -> None:
    step = training(Layers(), on_gpu(4096, 4096))
    assert rehearse(lambda: step().item()).findings == ()


def test_a_mistake_while_looking_leaves_the_other_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.rehearsal.read_facts.find_all", lambda analysis: {}["key"])
    with pytest.warns(UserWarning, match="no findings, because .* failed: KeyError"):
        facts = rehearse(quiet())
    assert facts.findings == ()
    assert facts.typical_step is not None
