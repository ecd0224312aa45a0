"""The clock of a process in both modes, without a clock, and on a node of a larger rig."""

from __future__ import annotations

import json

import pytest
from on_a_rig import output_of_lines, run

from anyrig.errors import VirtualRigError
from anyrig.virtual import VirtualRig
from anyrig.virtual.nodes import node_of_process

PROGRAM = """
import json, sys
import anyrig.virtual

anyrig.virtual.install("2xT4", shape_only={shape_only}, clock={clock})
import torch

x = torch.randn(64, 8, 16, 16).cuda()
model = torch.nn.Sequential(
    torch.nn.Conv2d(8, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(8), torch.nn.ReLU()
)
model = model.cuda()
model(x)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
y = model(x).to("cuda:1")
y.sum().backward()
end.record()
torch.cuda.synchronize()
print(start.elapsed_time(end))
"""

READ = "print(json.dumps([[d.flops, d.memory_bytes, d.done_seconds] for d in anyrig.virtual.clock().devices]))"  # noqa: E501


def test_both_modes_take_the_same_time() -> None:
    compute, shapes = (
        output_of_lines(PROGRAM.format(shape_only=mode, clock=True) + READ)
        for mode in (False, True)
    )
    assert compute == shapes
    assert float(compute[0]) > 0
    assert all(figure > 0 for figure in json.loads(compute[1])[0])


def test_without_a_clock_work_takes_no_time_and_reading_raises() -> None:
    program = PROGRAM.format(shape_only=True, clock=False)
    read = "\ntry: anyrig.virtual.clock()\nexcept RuntimeError as error: print(error)"
    milliseconds, error = output_of_lines(program + read)
    assert float(milliseconds) == 0
    assert "has a virtual rig without a clock" in error


def test_without_a_rig_there_is_no_clock() -> None:
    refused = run("-c", "import anyrig.virtual; anyrig.virtual.clock()").stderr
    assert "this process has no virtual rig; call anyrig.virtual.install(rig)" in refused


RIG = VirtualRig.parse("2x(3xT4)+(2xL4)")


def test_the_node_comes_from_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROUP_RANK", raising=False)
    assert node_of_process(RIG) == 0
    monkeypatch.setenv("GROUP_RANK", "2")
    assert node_of_process(RIG) == 2
    assert node_of_process(VirtualRig.parse("4xT4")) == 0


@pytest.mark.parametrize("rank", ["3", "-1", "first"])
def test_a_node_beyond_the_rig_is_refused(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", rank)
    with pytest.raises(VirtualRigError, match=rf"GROUP_RANK is '{rank}' .* has the nodes 0 to 2"):
        node_of_process(RIG)


def test_a_process_sees_only_the_gpus_of_its_node() -> None:
    program = (
        "import anyrig.virtual; anyrig.virtual.install('2x(3xT4)+(2xL4)'); import torch; "
        "print(torch.cuda.device_count(), torch.cuda.get_device_name(1))"
    )
    assert run("-c", program, GROUP_RANK="2").stdout == "2 NVIDIA L4\n"
    visible = run("-c", program, GROUP_RANK="1", CUDA_VISIBLE_DEVICES="2,0")
    assert visible.stdout == "2 Tesla T4\n"
    assert "GROUP_RANK is '3'" in run("-c", program, GROUP_RANK="3").stderr
