"""`rehearse --remedies` promises what each remedy saves when it is applied by hand."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from remedied_programs import TRAININGS, compare

from anyrig.errors import RemedyError
from anyrig.programs.program import Program
from anyrig.rehearsal.remedies.rehearsed import _shorten, compare_outcomes, rehearse_remedies
from anyrig.rehearsal.remedies.remedy import REMEDIES
from anyrig.rehearsal.remedies.savings import Saving, Savings
from anyrig.rehearsal.remedies.trial import Outcome
from anyrig.virtual.rig import VirtualRig
from forked_programs import run_anyrig

MIB = 2**20


@pytest.mark.parametrize(
    ("program", "remedies"),
    [
        pytest.param("transformer", ["recomputation"], marks=pytest.mark.sweep),
        pytest.param(
            "transformer",
            ["half the batch", "mixed precision", "gradients set to None"],
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "wide layers",
            ["fused optimizer", "parameters updated one by one"],
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_promises_are_kept(program: str, remedies: list[str], tmp_path: Path) -> None:
    found = compare(TRAININGS[program], tmp_path, remedies)
    assert {name for name, _, _ in found} == {*remedies}
    for name, promised, obtained in found:
        assert promised == pytest.approx(obtained, rel=0.01), name
    assert [*found] == sorted(found, key=lambda each: -each[1])


def rehearse(text: str, folder: Path, *names: str) -> Savings:
    script = folder / "train.py"
    script.write_text(text)
    return rehearse_remedies(
        Program(str(script), ("3",)), VirtualRig.parse("4GiB+320MiB"), os.environ, names
    )


BLOCKS = """
import sys, torch
from torch import nn
assert sys.argv[1:] == ["3"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 2048), nn.ReLU(), nn.Linear(2048, 8))
    def forward(self, x):
        return self.inner(x)
model = nn.Sequential(*[Block() for _ in range(4)]).to("cuda:1")
elsewhere = torch.zeros(2**28, device="cuda:0")  # which has room for it
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number in range(9):
    model(torch.zeros(2**(number + 8), 8, device="cuda:1")).sum().backward()
    optimizer.step()
    assert model[0].inner[0].weight.grad is not None
"""


def test_the_program_is_compared_up_to_the_call_that_failed(tmp_path: Path) -> None:
    names = "recomputation", "parameters updated one by one", "gradients set to None"
    savings = rehearse(BLOCKS, tmp_path, *names)
    # The call of 8192 samples, whose four blocks keep 8 KiB of each: all of the memory.
    assert (savings.calls, savings.device) == (6, 1)
    assert savings.total_bytes == 320 * MIB
    assert 384 * MIB < savings.needed_bytes < 420 * MIB  # a backward pass has two more such
    # The optimizer needs less than 1 %, and the program does not run without its gradients.
    (saving,) = savings.of_remedies
    (advice,) = saving.advice
    assert advice == 'anyrig.memory.recompute_blocks(model, [f"{i}" for i in range(4)])'
    assert savings.needed_bytes - saving.saved_bytes == saving.needed_bytes
    assert saving.saved_bytes > 100 * MIB
    assert saving.time_fraction is not None
    assert 1.1 < saving.time_fraction < 2
    assert saving.is_enough  # once the allocator has released what it has cached
    assert savings.left_out["parameters updated one by one"] == "saves less than 1 % alone"
    assert "ends with AssertionError" in savings.left_out["gradients set to None"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import torch\nif torch.ones(1, device='cuda').item() == 1: raise KeyError('label')",
            "without data it ends with KeyError: 'label'",
        ),
        (
            "import os, torch; os._exit(0)",
            "a trial of the unchanged program ended without a result; the program may end its",
        ),
        (
            "import os, torch; os.kill(os.getpid(), 9)",
            "ended without a result: the system killed its process, as it does when the host runs",
        ),
        ("import os, torch; os.kill(os.getpid(), 15)", "its process was ended by signal 15"),
        (
            "import torch\n"
            "while True: keep = torch.empty(torch.cuda.memory_reserved() + 2**28, device='cuda')",
            "with 16 times the memory, the program ends with OutOfMemoryError",
        ),
    ],
)
def test_what_cannot_be_rehearsed_is_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(RemedyError, match=re.escape(words)):
        rehearse(text, tmp_path, "offload")


def test_what_a_backward_pass_calls_is_no_call_of_the_model(tmp_path: Path) -> None:
    without_steps = BLOCKS.replace("    optimizer.step()\n", "")
    assert without_steps != BLOCKS
    # The variables of a remedy are set in its trial only.
    checked = f"import os\nassert 'PYTORCH_CUDA_ALLOC_CONF' not in os.environ\n{without_steps}"
    savings = rehearse(checked, tmp_path, "expandable segments", "recomputation")
    assert savings.calls == 6
    assert [each.remedies for each in savings.of_remedies] == [("recomputation",)]
    assert "ends with AssertionError" in savings.left_out["expandable segments"]


def test_a_program_may_end_itself(tmp_path: Path) -> None:
    text = "import sys, torch; torch.empty(2**27, device='cuda:1'); sys.exit(0)"
    savings = rehearse(text, tmp_path, "offload")
    assert (savings.calls, savings.needed_bytes) == (0, 512 * MIB)
    assert savings.of_remedies == ()


@pytest.mark.parametrize("given", [{}, {"foreach": True}, {"fused": False, "foreach": False}])
@pytest.mark.parametrize(
    ("remedy", "option"),
    [("fused optimizer", "fused"), ("parameters updated one by one", "foreach")],
)
def test_options_of_the_program_stay(remedy: str, option: str, given: dict[str, bool]) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], **given)
    observer: Any = REMEDIES[remedy].apply(None, print)  # type: ignore[arg-type]
    try:
        optimizer.step()
    finally:
        observer.stop()
    (group,) = optimizer.param_groups
    expected = {"fused": None, "foreach": None, **given}
    if not given:
        expected[option] = option == "fused"
    assert {name: group[name] for name in expected} == expected


def test_a_step_has_its_gradients_until_it_ends() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    observer: Any = REMEDIES["gradients set to None"].apply(None, print)  # type: ignore[arg-type]
    try:
        torch.optim.SGD([parameter], 1.0).step()
    finally:
        observer.stop()
    assert parameter.tolist() == [0, 0]
    assert parameter.grad is None


def test_expandable_segments_save_reserved_bytes() -> None:
    def outcome(allocated_bytes: int, reserved_bytes: int, seconds: float) -> Outcome:
        peaks = (9, allocated_bytes), (9, reserved_bytes)
        return Outcome(None, False, 1, 1, *peaks, (9, 9), seconds, {})

    before, after = outcome(100, 200, 2.0), outcome(90, 120, 3.0)
    found = compare_outcomes(["expandable segments"], before, after, 1)
    assert (found.saved_bytes, found.needed_bytes, found.time_fraction) == (80, 120, 1.5)
    assert found.is_of_reserved
    found = compare_outcomes(["offload"], before, after, 1)
    assert (found.saved_bytes, found.needed_bytes) == (10, 90)
    both = compare_outcomes(["offload", "expandable segments"], before, after, 1)
    assert both == replace(found, remedies=both.remedies, advice=both.advice)
    both = compare_outcomes(["offload", "half the batch"], before, after, 1)
    assert both.time_fraction is None
    assert compare_outcomes(["half the batch"], before, after, 1).time_fraction is None


def test_the_programs_own_error_and_status_remain(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, anyrig\n"
        "with anyrig.memory.explain_oom():\n"  # whose report is the error's
        "  if torch.rand(2, device='cuda').sum().item() != 1: torch.empty(2**34, device='cuda')\n"
    )
    done = run_anyrig("rehearse", "--rig", "T4", "--remedies", str(script))
    assert done.returncode == 1
    assert "torch.OutOfMemoryError" in done.stderr
    # Every value that is read without data is 1.
    assert done.stderr.splitlines()[-1] == (
        "anyrig: no remedy could be rehearsed: remedies are tried without data, and without data "
        "it runs to its end"
    )
    script.write_text(
        "import torch\nheld = [torch.empty(2**30, device='cuda') for _ in range(8)]\n"
    )
    done = run_anyrig("rehearse", "--rig", "T4", "--remedies", str(script))
    span = re.search(
        r"^Rehearsing the remedies takes about (\S+) to (\S+) m?s\.$", done.stderr, re.M
    )
    assert span is not None, done.stderr
    assert float(span[2].replace(",", "")) > float(span[1].replace(",", "")) > 0
    script.write_text("import torch; print(torch.cuda.device_count())")
    done = run_anyrig("rehearse", "--rig", "T4", "--remedies", str(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_ranks_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    done = run_anyrig(
        "rehearse", "--rig", "2xT4", "--remedies", "--nproc-per-device", "1", str(script)
    )
    assert done.returncode == 2
    assert "--remedies" in done.stderr
    assert "in one process" in done.stderr


def test_the_report_has_a_line_for_each_remedy() -> None:
    savings = Savings(
        3,
        1,
        3 * MIB,
        4 * MIB,
        2 * MIB,
        (
            Saving(("offload",), ("with save_on_cpu()",), 2 * MIB, MIB, 3.5, False, True),
            Saving(("expandable segments",), ("SET=1",), MIB, 3 * MIB, None, True, False),
        ),
        {"a": "too small", "b": "not there", "c": "too small"},
    )
    assert str(savings).splitlines() == [
        "cuda:1 has 2.00 MiB, and the step needs 3.00 MiB, for which the allocator reserves "
        "4.00 MiB. Rehearsed remedies:",
        "  saves 2.00 MiB, enough, time +250 %: offload: with save_on_cpu()",
        "  saves 1.00 MiB of reserved memory, not enough: expandable segments: SET=1",
        "  left out: a, c: too small",
        "  left out: b: not there",
    ]
    both = Saving(("a", "b"), ("do a", "do b"), MIB, MIB, 1.5, False, True)
    assert str(Savings(1, 0, MIB, MIB, MIB, (), {}, both)).splitlines()[1:] == [
        "  none is enough alone; together:",
        "  saves 1.00 MiB, enough, time +50 %:",
        "    a: do a",
        "    b: do b",
    ]
    short = replace(both, is_enough=False)
    assert "it does not fit" in str(Savings(1, 0, MIB, MIB, MIB, (), {}, short))
    head, advice = str(Savings(1, 0, MIB, MIB, MIB, (), {})).splitlines()
    assert head.endswith("reserves 1.00 MiB. No remedy that was rehearsed saves 1 % of it.")
    assert "anyrig fit --rig all" in advice


def test_a_long_error_is_shortened() -> None:
    assert _shorten("KeyError: 1") == "KeyError: 1"
    assert _shorten("KeyError: 1\nmore") == "KeyError: 1…"
    assert _shorten("x" * 101) == f"{'x' * 100}…"


@pytest.mark.sweep  # three rehearsals
def test_a_remedy_may_not_be_enough(tmp_path: Path) -> None:
    text = BLOCKS.replace("2**(number + 8)", "2**(number + 8) * (1 if number < 5 else 3)")
    assert text != BLOCKS
    names = "recomputation", "half the batch"
    savings = rehearse(text, tmp_path, *names)
    (saving,) = savings.of_remedies
    assert savings.calls == 6
    assert saving.needed_bytes > 256 * MIB
    assert not saving.is_enough
    assert savings.left_out == {
        "half the batch": "the program makes no DataLoader with a batch_size above 1"
    }


FIRST_STEP = """
import torch
net = torch.nn.Linear(4096, 4096, bias=False).to("cuda:1")  # 64 MiB, and Adam's state 128 MiB
optimizer = torch.optim.Adam(net.parameters())
x = torch.zeros(2048, 4096, device="cuda:1")  # 32 MiB, as each activation has
for _ in range(3):
    optimizer.zero_grad()
    net(x).sin().cos().sum().backward()
    optimizer.step()
"""


def test_a_remedy_of_the_first_step_must_save_in_the_second(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FIRST_STEP)
    rig = VirtualRig.parse("4GiB+320MiB")
    savings = rehearse_remedies(
        Program(str(tmp_path / "train.py"), ()), rig, os.environ, ["fused optimizer"]
    )
    assert (
        savings.of_remedies == ()
    )  # in the second step, activations come to the optimizer's state
    assert savings.left_out == {"fused optimizer": "saves less than 1 % alone"}
    assert savings.needed_bytes > 320 * MIB
