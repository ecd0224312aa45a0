"""Products of 8-bit floats on GPUs that support them."""

from __future__ import annotations

import pytest
from on_a_rig import PROGRAMS, output_of, run

PROGRAM = """
import torch

def matrix(rows, columns, dtype=torch.float8_e4m3fn):
    return torch.ones(rows, columns).to(dtype).cuda()

def product(a, b, **options):
    scale = torch.ones((), device="cuda")
    return torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, **options)

def refusal(*operands, **options):
    try:
        product(*operands, **options)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "taken"

narrow = {"out_dtype": torch.bfloat16}
a, b = matrix(32, 32), matrix(16, 32)
assert product(a, b.t(), **narrow).shape == (32, 16)
assert product(a[:0], b.t(), **narrow).shape == (0, 16)
layout = "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
assert refusal(a, a, **narrow) == "RuntimeError: " + layout
assert refusal(a.t(), a.t(), **narrow) == "RuntimeError: " + layout
assert "mat1 shape: (32x8)" in refusal(matrix(32, 8), matrix(16, 8).t(), **narrow)
assert refusal(a, matrix(8, 32).t()) == "RuntimeError: mat2 shape (32x8) must be divisible by 16"
wide = torch.float8_e5m2
assert refusal(matrix(32, 32, wide), matrix(32, 32, wide).t()).startswith("ValueError: Multiplic")
bias = torch.ones(16, device="cuda")
assert "Bias must be BFloat16 or Half" in refusal(a, b.t(), bias=bias, **narrow)
assert "Float32" in refusal(a, b.t(), bias=bias.bfloat16(), out_dtype=torch.float32)
assert "to compute BFloat16 output" in refusal(a, b.t(), bias=bias.half(), **narrow)
assert refusal(a, b.t(), bias=bias.bfloat16(), **narrow) == "taken"
"""


@pytest.mark.parametrize("shape_only", [False, True])
def test_what_is_refused(shape_only: bool) -> None:
    install = (
        f"import anyrig.virtual\nanyrig.virtual.install('1xH100-SXM', shape_only={shape_only})\n"
    )
    finished = run("-c", install + PROGRAM)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("shape_only", [False, True])
@pytest.mark.parametrize("gpu", ["B200", "H100-SXM", "L4"])
def test_scales_of_rows_blocks_and_groups(gpu: str, shape_only: bool) -> None:
    rehearse = ("-m", "anyrig", "rehearse", "--rig", f"1x{gpu}")
    program = str(PROGRAMS / "scaled_products.py")
    command = ("--shape-only", program, "shapes") if shape_only else (program,)
    assert output_of(*rehearse, *command).endswith("multiplied\n")
