"""Which programs and steps remedies are compared on, and remedies together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from test_remedies import BLOCKS, MIB, rehearse

from anyrig.programs.program import Program
from anyrig.rehearsal.remedies.rehearsed import _Comparison, _join, rehearse_remedies
from anyrig.rehearsal.remedies.savings import Saving
from anyrig.virtual.rig import VirtualRig

TOO_MUCH = (
    BLOCKS.partition("for number")[0]
    + """
samples = torch.utils.data.TensorDataset(torch.zeros(64_000, 8))
for (x,) in torch.utils.data.DataLoader(samples, batch_size=16_000):
    model(x.to("cuda:1")).sum().backward()  # the blocks keep 500 MiB
    optimizer.step()
"""
)


def test_remedies_of_which_none_is_enough_are_joined(tmp_path: Path) -> None:
    names = "parameters updated one by one", "half the batch", "recomputation", "offload"
    savings = rehearse(TOO_MUCH, tmp_path, *names)
    assert {each.remedies for each in savings.of_remedies} == {(name,) for name in names[1:]}
    # Offloading would be the second one that is added, but for its time.
    order = ["half the batch", "offload", "recomputation"]
    assert [each.remedies[0] for each in savings.of_remedies] == order
    assert not any(each.is_enough for each in savings.of_remedies)
    together = savings.together
    assert together is not None
    assert together.is_enough
    assert savings.enough == (together,)
    assert {*together.remedies} == {*names[1:3]}
    assert "DataLoader(…, batch_size=8000), and accumulate" in together.advice
    assert together.saved_bytes > max(each.saved_bytes for each in savings.of_remedies) + 50 * MIB
    assert together.needed_bytes < 320 * MIB


@dataclass
class SavedTogether:
    """What remedies would save together, in the place of trials of a program."""

    saved_bytes: Mapping[tuple[str, ...], int]
    enough_bytes: int
    least_bytes: int = 10

    def saving_of(self, names: Sequence[str]) -> Saving:
        saved = self.saved_bytes[tuple(names)]
        enough = saved >= self.enough_bytes
        return Saving(tuple(names), (), saved, 1000 - saved, None, False, enough)


@pytest.mark.parametrize(("added", "expected"), [(9, ("a", "c")), (10, ("a", "b", "c"))])
def test_a_remedy_that_adds_less_than_one_percent_to_others_is_left_out(
    added: int, expected: tuple[str, ...]
) -> None:
    saved = {
        ("a",): 400,
        ("b",): 300,
        ("c",): 200,
        ("d",): 100,
        ("a", "b"): 400 + added,
        ("a", "c"): 600,
        ("a", "b", "c"): 600 + added,
        ("a", "b", "c", "d"): 700,
    }
    comparison = SavedTogether(saved, enough_bytes=600)
    alone = [comparison.saving_of(name) for name in "abcd"]
    together = _join(cast("_Comparison", comparison), alone, ())
    assert together is not None
    assert together.remedies == expected


@pytest.mark.parametrize(
    ("saved", "alone", "enough_bytes", "expected"),
    [
        # Enough only with one that saves nothing alone.
        ({("a",): 400, ("s",): 0, ("a", "s"): 600}, "a", 600, ("a", "s")),
        # Not enough, and more with it than without.
        ({("a",): 400, ("s",): 0, ("a", "s"): 410}, "a", 600, ("a", "s")),
        # It adds too little, and then one remedy is left.
        ({("a",): 400, ("s",): 0, ("a", "s"): 409}, "a", 600, None),
        # The same beside two.
        (
            {("a",): 400, ("b",): 90, ("s",): 9, ("a", "b", "s"): 509, ("a", "b"): 500},
            "ab",
            600,
            ("a", "b"),
        ),
        (
            {("a",): 400, ("b",): 90, ("s",): 9, ("a", "b", "s"): 510, ("a", "b"): 500},
            "ab",
            600,
            ("a", "b", "s"),
        ),
        # Offloading comes after it.
        (
            {
                ("a",): 300,
                ("offload",): 400,
                ("s",): 0,
                ("a", "s"): 600,
                ("a", "s", "offload"): 700,
            },
            ("a", "offload"),
            600,
            ("a", "s"),
        ),
        # Nothing saves 1 % alone.
        ({("s",): 9}, "", 600, None),
    ],
)
def test_remedies_that_save_nothing_alone_are_joined_with_those_that_do(
    saved: Mapping[tuple[str, ...], int],
    alone: Sequence[str],
    enough_bytes: int,
    expected: tuple[str, ...] | None,
) -> None:
    comparison = SavedTogether(saved, enough_bytes)
    savings = [comparison.saving_of([name]) for name in alone]
    small = [comparison.saving_of(["s"])]
    together = _join(cast("_Comparison", comparison), savings, small)
    assert (None if together is None else together.remedies) == expected


WITH_ADAMW = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 8192), nn.Tanh(), nn.Linear(8192, 64))
    def forward(self, x):
        return self.inner(x)
model = nn.Sequential(*[Block() for _ in range(24)]).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.zeros(512, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_with_recomputation_the_optimizers_step_needs_most(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITH_ADAMW)
    names = ["gradients set to None", "parameters updated one by one", "recomputation"]
    savings = rehearse_remedies(
        Program(str(script), ()), VirtualRig.parse("480MiB"), os.environ, names
    )
    assert [each.remedies for each in savings.of_remedies] == [("recomputation",)]
    together = savings.together
    assert together is not None
    assert together.is_enough
    assert together.remedies == ("recomputation", "parameters updated one by one")
    assert together.saved_bytes > savings.of_remedies[0].saved_bytes + 40 * MIB
    assert savings.left_out == {"gradients set to None": "saves less than 1 % alone"}


def test_if_all_remedies_together_are_not_enough_no_part_of_them_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = TOO_MUCH.replace("16_000", "60_000").replace("64_000", "240_000")
    assert larger != TOO_MUCH
    savings = rehearse(larger, tmp_path, "recomputation", "half the batch", "mixed precision")
    assert savings.together is not None
    assert len(savings.together.remedies) == 3
    assert not savings.together.is_enough
    assert savings.enough == ()
    assert capsys.readouterr().err.count("together") == 1
    text = str(savings)
    assert "none is enough alone; together:\n  saves" in text
    assert "it does not fit" in text


WITHIN = """
import resource
samples = torch.zeros(60_000, 8, device="cuda:1")
for part in (1, 2):
    model(samples[: 60_000 // part]).sum().backward()  # the blocks keep 1.8 GiB, then half of it
    optimizer.step()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1.5 * 2**20  # KiB
"""


def test_offloading_is_rehearsed_without_the_hosts_memory(tmp_path: Path) -> None:
    savings = rehearse(BLOCKS.partition("for number")[0] + WITHIN, tmp_path, "offload")
    (saving,) = savings.of_remedies
    assert savings.left_out == {}
    (advice,) = saving.advice
    kept = re.search(r"which keeps ([\d.]+) GiB on the host$", advice)
    assert kept is not None, advice
    # In the first call: PyTorch keeps the output of each ReLU twice.
    assert 3.6 < float(kept[1]) < 3.8
    assert saving.saved_bytes > 2**30
    assert saving.time_fraction is not None
    assert saving.time_fraction > 1.5


def test_what_is_not_enough_together_is_not_left_out(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITH_ADAMW)
    names = ["parameters updated one by one", "recomputation"]
    savings = rehearse_remedies(
        Program(str(script), ()), VirtualRig.parse("390MiB"), os.environ, names
    )
    assert savings.together is not None
    assert savings.together.remedies == ("recomputation", "parameters updated one by one")
    assert not savings.together.is_enough
    assert savings.left_out == {}


def test_what_fails_in_the_first_step_is_compared_up_to_the_end_of_the_second(
    tmp_path: Path,
) -> None:
    adam = TOO_MUCH.replace(
        "for (x,)", "optimizer = torch.optim.Adam(model.parameters())\nfor (x,)"
    )
    assert adam != TOO_MUCH
    first = rehearse(TOO_MUCH, tmp_path, "recomputation")
    second = rehearse(adam, tmp_path, "recomputation")
    state = 2 * 4 * (2 * 8 * 2048 + 2048 + 8) * 4  # of four blocks, in float32
    assert second.needed_bytes - first.needed_bytes == pytest.approx(state, rel=0.1)
    more = second.of_remedies[0].needed_bytes - first.of_remedies[0].needed_bytes
    assert more == pytest.approx(state, rel=0.1)  # what is saved does not depend on the state


def test_a_program_without_steps_is_compared_up_to_the_call_that_failed(tmp_path: Path) -> None:
    growing = BLOCKS.partition("for number")[0] + (
        "for times in (1, 4):\n"
        "    model(torch.zeros(16_000 * times, 8, device='cuda:1')).sum().backward()\n"
    )
    savings = rehearse(growing, tmp_path, "recomputation")
    assert savings.calls == 1
    assert 480 * MIB < savings.needed_bytes < 900 * MIB
    assert savings.of_remedies[0].saved_bytes < 480 * MIB


RECOMPUTED = """
from anyrig.memory import recompute_blocks
recompute_blocks(model, ["0", "1", "2", "3"])
"""


def test_what_is_recomputed_already_is_no_remedy(tmp_path: Path) -> None:
    before, loop, after = TOO_MUCH.partition("\nsamples =")
    savings = rehearse(before + RECOMPUTED + loop + after, tmp_path, "recomputation")
    assert savings.of_remedies == ()
    assert savings.together is None
    assert savings.left_out == {
        "recomputation": "the model has no repeated blocks that are not recomputed yet"
    }
