"""`track(every="step")` names what grows from step to step, and what holds it."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leaking_programs
import pytest
import torch
from leaking_programs import (
    PROGRAMS,
    SAMPLES,
    STEPS,
    WIDTH,
    History,
    Node,
    Training,
    cycles,
    nothing,
)
from torch import Tensor

from anyrig.memory import track
from anyrig.memory.kept_variables import find_kept_variables

DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpus(1))]
)


@pytest.fixture(autouse=True)
def no_collection_within_the_loop() -> Iterator[None]:
    """Let reference cycles stay until tracking ends."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@DEVICES
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_holder_the_line_and_the_cure(program: Any, device: str) -> None:
    words, values = PROGRAMS[program]
    leaks = program(Training(device))
    assert leaks
    leak = leaks[0]
    assert leak.line.text.endswith("# HERE")
    assert leak.line.text in str(leak)
    assert leak.allocated_at.file == leaking_programs.__file__
    before, _, after = words.partition("{}")
    assert leak.sentence.startswith(before)
    assert after in leak.sentence
    assert f" more after each of the last {leak.steps} steps" in leak.sentence
    assert 4 * values <= leak.bytes_per_step < 4 * values * 3
    assert leak.steps == STEPS - 1
    assert len({each.line for each in leaks}) == 1, [*map(str, leaks)]


def test_a_list_of_losses() -> None:
    training = Training("cpu")
    losses = []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            loss = training.forward().mean()
            losses.append(loss)
            training.backward(loss)
    assert footprint.leaks[0].sentence.startswith("losses keeps ")
    assert footprint.leaks[0].sentence.endswith(": append loss.item() or loss.detach() instead")


def test_the_table_and_the_json_have_the_leaks() -> None:
    training = Training("cpu")
    kept = []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            training.backward(output.mean())
            found = output.detach().exp()
            kept.append(found)
    (leak,) = footprint.leaks
    assert footprint.table().splitlines()[-1] == f"grows: {leak}"
    (facts,) = json.loads(footprint.json())["leaks"]
    assert facts["bytes_per_step"] == 4 * SAMPLES
    assert (facts["line"], facts["steps"]) == (str(leak.line), STEPS - 1)
    assert facts["allocated_at"] == str(leak.allocated_at) != facts["line"]
    assert facts["sentence"] == leak.sentence


def test_the_fastest_growth_is_first_and_counted_from_its_begin() -> None:
    training = Training("cpu")
    small, large = [], []
    with track(every="step") as footprint:
        for number in range(STEPS):
            output = training.forward()
            if number >= 2:
                small.append(output.detach()[:500].exp())
                large.append(output.detach().exp())
            training.backward(output.mean())
    assert [leak.bytes_per_step for leak in footprint.leaks] == [4 * SAMPLES, 2 * SAMPLES]
    assert [leak.sentence.split()[0] for leak in footprint.leaks] == ["large", "small"]
    assert [leak.steps for leak in footprint.leaks] == [STEPS - 2] * 2
    lines = footprint.table().splitlines()[-2:]
    assert lines == [f"grows: {leak}" for leak in footprint.leaks]


def test_what_one_variable_keeps_of_two_lines_is_one_leak() -> None:
    training = Training("cpu")
    kept = []
    with track(every="step") as footprint:
        for number in range(STEPS):
            output = training.forward()
            large = output.detach().exp()
            kept.append(large)
            if number >= 2:
                small = output.detach()[:500].exp()
                kept.append(small)
            training.backward(output.mean())
    (leak,) = footprint.leaks
    assert (leak.bytes_per_step, leak.steps) == (4 * SAMPLES + 4 * 500, STEPS - 1)
    assert leak.allocated_at.text == "large = output.detach().exp()"


def test_a_kept_exception_is_not_blamed_for_the_variables_of_running_functions() -> None:
    training = Training("cpu")
    kept: list[Tensor] = []
    keep, errors = kept.append, []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            keep(output.detach().exp())
            try:
                raise KeyError
            except KeyError as error:
                errors.append(error)
            training.backward(output.mean())
    (leak,) = footprint.leaks
    assert leak.sentence.startswith("kept keeps ")
    assert leak.sentence.endswith(": drop what is not needed again")


def test_a_global_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    training, history = Training("cpu"), History()
    monkeypatch.setitem(globals(), "seen", history)
    keep = history.values.append
    del history
    with track(every="step") as footprint:
        for _ in range(STEPS):
            output = training.forward()
            keep(output.detach().exp())
            training.backward(output.mean())
    (leak,) = footprint.leaks
    assert leak.sentence.startswith("seen.values keeps ")


class Losses:
    def __init__(self) -> None:
        self.total: Tensor | float = 0.0


@DEVICES
def test_two_holders_of_one_line_have_their_parts(device: str) -> None:
    training, losses, total = Training(device), Losses(), 0.0
    with track(every="step") as footprint:
        for _ in range(STEPS):
            for passes in (1, 2):
                loss = training.forward().mean()
                if passes == 1:
                    losses.total = losses.total + loss
                else:
                    total = total + loss
            training.backward(loss)
    assert len(footprint.leaks) == 2
    first, second = sorted(footprint.leaks, key=lambda leak: leak.sentence)
    assert first.sentence.startswith("losses.total is a tensor with a graph and keeps ")
    assert second.sentence.startswith("total is a tensor with a graph and keeps ")
    assert first.line.text == "losses.total = losses.total + loss"
    of_graph = 4 * SAMPLES * WIDTH
    # Either may have the batches, which both graphs keep.
    assert 2 * of_graph <= first.bytes_per_step + second.bytes_per_step < 5 * of_graph


@pytest.mark.gpus(1)
def test_the_error_that_a_leak_leads_to_is_not_its_cause() -> None:
    def train() -> None:
        outputs = []
        for number in itertools.count():
            output = training.forward()
            outputs.append(output)
            training.backward(output.mean())
            if number == STEPS:
                torch.empty(2**44, device="cuda")

    training = Training("cuda")
    with pytest.raises(torch.OutOfMemoryError), track(every="step") as footprint:
        train()
    (leak,) = footprint.leaks
    assert leak.line.text == "outputs.append(output)"
    assert leak.sentence.startswith("outputs keeps ")
    assert "append output.detach()" in leak.sentence


@DEVICES
def test_a_list_of_batches(device: str) -> None:
    training = Training(device)
    batches = []
    with track(every="step") as footprint:
        for _ in range(STEPS):
            x = torch.randn(SAMPLES, WIDTH).to(device)
            batches.append(x)
            training.backward(training.net(x).mean())
    assert footprint.leaks[0].sentence.startswith("batches keeps 250.00 KiB more after each of")


@DEVICES
def test_a_loop_that_keeps_nothing_has_no_leak(device: str) -> None:
    assert nothing(Training(device)) == ()


@DEVICES
def test_what_grows_for_fewer_steps_is_no_leak(device: str) -> None:
    training = Training(device)
    kept = []
    with track(every="step") as footprint:
        for number in range(STEPS):
            output = training.forward()
            if number in (0, 1, 4):
                kept.append(output.detach().exp())
            training.backward(output.mean())
    assert footprint.leaks == ()
    with track() as whole:
        training.forward()
    assert whole.leaks == ()


@DEVICES
@pytest.mark.parametrize("growths", [2, 3])
def test_a_leak_has_grown_after_each_of_three_steps(growths: int, device: str) -> None:
    training = Training(device)
    kept = []
    with track(every="step") as footprint:
        for _ in range(1 + growths):
            output = training.forward()
            kept.append(output.detach().exp())
            training.backward(output.mean())
    assert [leak.steps for leak in footprint.leaks] == [growths] * (growths == 3)


def test_the_garbage_of_the_program_is_collected_and_its_settings_stay() -> None:
    flags = gc.get_debug()
    mine = object()
    gc.garbage.append(mine)
    gc.set_debug(gc.DEBUG_UNCOLLECTABLE)
    try:
        cycles(Training("cpu"))
        assert gc.garbage == [mine]
        assert gc.get_debug() == gc.DEBUG_UNCOLLECTABLE
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()
    gc.collect()
    assert not any(isinstance(each, Node) for each in gc.get_objects())


@pytest.mark.parametrize(
    "write",
    [
        "kept.append(one)",
        "kept.extend([one])",
        "kept.insert(0, one)",
        "kept_dict.update({one: one})",
        "kept_dict.setdefault(one, one)",
    ],
)
def test_every_method_that_adds_to_a_variable_is_known(write: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "def train(one, find):\n"
        "    kept, kept_dict = [], {}\n"
        "    for _ in range(3):\n"
        f"        {write}\n"
        "    return [(each.name, each.line.number) for each in find(sys._getframe(0))]\n"
    )
    code: dict[str, Any] = {}
    exec(compile(program.read_text(), str(program), "exec"), code)
    found = code["train"](torch.ones(1), find_kept_variables)
    assert (write.partition(".")[0], 5) in found


LOOPS = {
    "a decorated function": (
        "def train(one, find):\n"
        "    pass\n"
        "plain = lambda function: function\n"
        "@plain\n"
        "def train(one, find):\n"
        "    losses = []\n"
        "    losses.append(one)\n"
        "    return find(sys._getframe(0))\n",
        ("losses", 8),
    ),
    "a coroutine": (
        "async def run(one, find):\n"
        "    losses = []\n"
        "    losses.append(one)\n"
        "    return [*find(sys._getframe(0))]\n"
        "def train(one, find):\n"
        "    losses = [one]\n"
        "    return asyncio.run(run(one, find))\n",
        ("losses", 4),
    ),
    "a global variable": (
        "total = 0\n"
        "def train(one, find):\n"
        "    global total\n"
        "    total += one\n"
        "    return find(sys._getframe(0))\n",
        ("total", 5),
    ),
    "a buffer": (
        "def train(one, find):\n"
        "    meter = torch.nn.Module()\n"
        "    meter.register_buffer('sum', one)\n"
        "    meter.sum = meter.sum + one\n"
        "    return find(sys._getframe(0))\n",
        ("meter.sum", 5),
    ),
    "the last of two lines": (
        "def train(one, find):\n"
        "    losses = []\n"
        "    losses.append(one)\n"
        "    losses += [one]\n"
        "    return find(sys._getframe(0))\n",
        ("losses", 5),
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_line_of_any_function_that_adds_to_a_variable_is_known(
    loop: str, tmp_path: Path
) -> None:
    text, expected = LOOPS[loop]
    program = tmp_path / "program.py"
    another = "def another(losses):\n    losses.append(1)\n"
    program.write_text(f"import asyncio, sys, torch\n{text}{another}")
    code: dict[str, Any] = {}
    exec(compile(program.read_text(), str(program), "exec"), code)
    found = code["train"](torch.ones(1), lambda frame: [*find_kept_variables(frame)])
    assert expected in [(each.name, each.line.number) for each in found]


def test_a_notebooks_cell_with_a_magic_command_names_no_variable(tmp_path: Path) -> None:
    program = tmp_path / "cell.py"
    text = "import sys\ndef train(one, find):\n    kept = [one]\n    kept += [one]\n"
    text += "    return find(sys._getframe(0))\n"
    code: dict[str, Any] = {}
    exec(compile(text, str(program), "exec"), code)
    program.write_text(f"%matplotlib inline\n{text}")
    found = code["train"](torch.ones(1), lambda frame: [*find_kept_variables(frame)])
    assert [each for each in found if each.line.file == str(program)] == []
