"""Shape-only mode raises an error where it needs a value, or assumes that the value is one."""

from __future__ import annotations

import pytest
from on_a_rig import PROGRAMS, output_of, output_of_lines

PROGRAM = str(PROGRAMS / "shape_only.py")
STOPS = {
    "item": "aten::_local_scalar_dense",
    "bool": "aten::_local_scalar_dense",
    "if": "aten::_local_scalar_dense",
    "nonzero": "aten::nonzero",
    "mask": "aten::index ",
    "masked assignment": "aten::",
    "masked_select": "aten::masked_select",
    "cpu": "aten::copy_",
    "equal": "aten::equal",
    "list": "aten::",
    "ends": "aten::_local_scalar_dense",
    "special": "aten::_local_scalar_dense",
}


@pytest.fixture(scope="module")
def stopped() -> list[str]:
    return output_of(PROGRAM).splitlines()


@pytest.mark.parametrize("name", STOPS)
def test_the_error_names_the_operator_the_line_and_the_way_out(
    stopped: list[str], name: str
) -> None:
    line = next(line for line in stopped if line.startswith(f"{name} ->"))
    assert f"-> ValueNeededError {STOPS[name]}" in line
    assert f"{PROGRAM}, line " in line
    assert "--assume-values" in line


KEEP_THE_MASK = "Keep the mask on the CPU: a tensor of the GPU can be indexed by it"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("large item", "Ask the tensor on the CPU before it is copied"),
        ("large mask", KEEP_THE_MASK),
        ("large nonzero", KEEP_THE_MASK),
    ],
)
def test_a_large_mask_has_a_remedy_on_the_host(stopped: list[str], name: str, remedy: str) -> None:
    line = next(line for line in stopped if line.startswith(f"{name} ->"))
    assert f"{PROGRAM}, line " in line
    assert "They come from a tensor of more than 2 MiB" in line
    assert remedy in line
    assert "large, on the host -> (True, torch.Size([4194304]))" in stopped  # the remedies work


def test_what_asks_for_no_value(stopped: list[str]) -> None:
    """`trunc_normal_`, fused SGD, sizes and lengths that the program gives as numbers."""
    assert "no question (7, 3) (5, 2, 4)" in stopped


def test_printing_and_running_out(stopped: list[str]) -> None:
    assert "tensor(..., size=(3,), device='cuda:0')" in stopped
    assert "tensor(..., size=(2, 3), device='cuda:0', requires_grad=True)" in stopped[-3]
    assert stopped[-2] == "backward done"
    assert stopped[-1].startswith("CUDA out of memory. Tried to allocate 4096.00 GiB.")


def test_assumed_values_are_one() -> None:
    lines = output_of(PROGRAM, "--assume-values").splitlines()
    answers = dict(line.split(" -> ", 1) for line in lines if " -> " in line)
    assert answers == {
        "item": "1.0",
        "bool": "True",
        "if": "1",
        "nonzero": "torch.Size([12, 2])",
        "mask": "torch.Size([12])",
        "masked assignment": "torch.Size([4, 3])",
        "masked_select": "torch.Size([12])",
        "cpu": "[1.0, 1.0, 1.0]",
        "equal": "True",
        "list": "[1, 1, 1]",
        "ends": "False",  # of one token for each sequence
        "special": "True",
        "large item": "True",
        "large mask": "torch.Size([4194304])",
        "large nonzero": "torch.Size([4194304, 2])",
        "large, on the host": "(True, torch.Size([4194304]))",
    }


def test_a_model_larger_than_the_host_trains_in_no_memory() -> None:
    seconds, resident = output_of_lines(
        """
        import pathlib, re, time, torch
        from torch import nn
        from anyrig.virtual import install
        install("1x700GiB", shape_only=True)
        with torch.device("cuda"):
            layers = [nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16) for _ in range(300)]
            model = nn.Sequential(*layers)
            x = torch.randn(1024, 8192, dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            start = time.process_time()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        print(time.process_time() - start)
        # The peak of this program alone; ru_maxrss would include the parent test process.
        status = pathlib.Path("/proc/self/status").read_text()
        print(re.search("VmHWM:[^0-9]*([0-9]+) kB", status)[1])
        assert torch.cuda.memory_allocated() > 140 * 2**30
        """
    )
    assert float(seconds) < 2
    assert int(resident) * 1024 < 2**30
