"""Mistakes in a training script are found with their lines; lookalikes are not reported."""

from __future__ import annotations

import re
import textwrap

import pytest
import torch
from seeded_mistakes import ADAM, MISTAKES, REPLACED_TWICE, RIGHT, SKIPPED, run, source_of
from torch import nn

from anyrig.hazards import HazardKind

DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda:1", marks=pytest.mark.gpus(2))]
)


@DEVICES
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_with_its_lines(mistake: str, device: str) -> None:
    changes, kind = MISTAKES[mistake]
    hazards, marked = run(source_of(changes), f"{mistake} {device}", device)
    assert [hazard.kind for hazard in hazards] == [kind], "\n".join(map(str, hazards))
    places = {place.role: (place.file, place.number) for place in hazards[0].places}
    assert marked.items() <= places.items()
    assert hazards[0].remedy


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("replacements", REPLACED_TWICE)
def test_two_replacements_are_one_hazard_with_all_lost_parameters(
    replacements: str, step: int
) -> None:
    first, second, lost = REPLACED_TWICE[replacements]
    changes = ADAM | {
        "before": "import copy",
        "after": first if step == -1 else "",
        "clear": f"optimizer.zero_grad()\nif step == {step}: {first}\nif step == 2: {second}",
    }
    hazards, _ = run(source_of(changes), f"{replacements} {step}", "cpu")
    assert [hazard.kind for hazard in hazards] == [HazardKind.REPLACED]
    assert re.findall(r"(\d+) (?:of the )?parameters of Adam", hazards[0].what) == [str(lost)]


def test_the_lost_parameters_are_reported_although_new_ones_are_made_in_each_step() -> None:
    """The report waits for the last step, and is not only that gradients are missing."""
    mistake = "an optimizer of another model, and new parameters in each step"
    hazards, _ = run(source_of(MISTAKES[mistake][0]), mistake, "cpu")
    assert [
        "6 of the parameters of AdamW are in no model any more" in one.what for one in hazards
    ] == [True]


def test_another_model_with_gradients_is_no_replacement() -> None:
    """It was made, and trained by an optimizer that is gone, before the optimizer was made."""
    source = """
        model = nn.Linear(4, 2).to(device)
        model(torch.ones(3, 4, device=device)).sum().backward()
        other = nn.Linear(4, 2).to(device)
        optimizer = torch.optim.SGD(other.parameters(), 0.01)
        other(torch.ones(3, 4, device=device)).sum()
        optimizer.step()
    """
    hazards, _ = run(textwrap.dedent(source), "another model", "cpu")
    assert [hazard.kind for hazard in hazards] == [HazardKind.NO_GRADIENT]


@pytest.mark.parametrize("steps", [2, 3])
def test_three_steps_in_a_row_add_to_gradients_that_are_never_cleared(steps: int) -> None:
    source = source_of(MISTAKES["never cleared"][0]).replace("range(4)", f"range({steps})")
    hazards, _ = run(source, f"{steps} steps, never cleared", "cpu")
    assert [hazard.kind for hazard in hazards] == [HazardKind.ACCUMULATED] * (steps == 3)


@DEVICES
def test_a_scaler_that_skips_every_step_is_found(device: str) -> None:
    hazards, marked = run(textwrap.dedent(SKIPPED), f"skipped {device}", device)
    assert [hazard.kind for hazard in hazards] == [HazardKind.UNSTEPPED_SCALER]
    assert {place.role: (place.file, place.number) for place in hazards[0].places} == marked


@DEVICES
def test_a_scaler_that_skips_its_first_five_steps_raises_no_alarm(device: str) -> None:
    source = textwrap.dedent(SKIPPED).replace("range(14)", "range(5)")
    hazards, _ = run(source, f"first skipped {device}", device)
    assert hazards == []


@pytest.mark.parametrize("skips", [11, 12, 13])
def test_twelve_skipped_steps_in_a_row_are_the_first_that_are_reported(skips: int) -> None:
    source = textwrap.dedent(SKIPPED).replace("range(14)", f"range({skips})")
    hazards, _ = run(source, f"{skips} skipped", "cpu")
    assert [hazard.kind for hazard in hazards] == [HazardKind.UNSTEPPED_SCALER] * (skips >= 12)
    for hazard in hazards:
        assert "the scaler skipped 12 steps of SGD in a row" in hazard.what


@DEVICES
def test_only_skipped_steps_in_a_row_count(device: str) -> None:
    source = textwrap.dedent(SKIPPED).replace("_ in range(14)", "step in range(18)")
    source = source.replace('float("inf")', 'float("inf") if step % 6 else 1.0')
    hazards, _ = run(source, f"skipped in turns {device}", device)
    assert hazards == []


@DEVICES
@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_raises_no_alarm(program: str, device: str) -> None:
    hazards, _ = run(source_of(RIGHT[program]), f"{program} {device}", device)
    assert hazards == []


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_raises_no_alarm_with_sums(program: str) -> None:
    hazards, _ = run(source_of(RIGHT[program]), f"{program} sums", "cpu", sums=True)
    assert hazards == []


@pytest.mark.gpus(1)
@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad", "RMSprop"])
def test_pytorch_refuses_state_that_a_move_leaves_behind(kind: str) -> None:
    """So there is no hazard to report."""
    model = nn.Linear(4, 2)
    momentum = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), 0.1, **momentum)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    model.cuda()
    with pytest.raises(RuntimeError, match="device"):
        optimizer.step()
