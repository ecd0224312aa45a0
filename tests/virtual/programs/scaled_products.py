"""Products of 8-bit and 4-bit floats with scales, on a GPU that supports all of them."""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType, scaled_grouped_mm, scaled_mm

EIGHT = torch.float8_e4m3fn
FOUR = torch.float4_e2m1fn_x2
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SWIZZLED = SwizzleType.SWIZZLE_32_4_4
MAJOR = torch.cuda.get_device_capability()[0]
SHAPE_ONLY = "shapes" in sys.argv


def in_tiles(scale: Tensor) -> Tensor:
    """Pad (rows, scales) to tiles of 128 x 4, and order each tile as cuBLAS reads it."""
    rows, columns = -(-scale.shape[0] // 128), -(-scale.shape[1] // 4)
    padded = torch.zeros(rows * 128, columns * 4)
    padded[: scale.shape[0], : scale.shape[1]] = scale
    tiles = padded.view(rows, 4, 32, columns, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).to(scale.dtype)


def eight_bits(rows: int, columns: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 8-bit numbers, a scale for each `block` of a row, and their products."""
    numbers = torch.randint(-8, 9, (rows, columns)).to(EIGHT)
    scale = torch.exp2(torch.randint(-2, 3, (rows, columns // block)).float())
    return numbers, scale, numbers.float() * scale.repeat_interleave(block, 1)


def four_bits(rows: int, columns: int, block: int) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).view(FOUR)
    signs = 1 - 2 * (codes >> 3).float()
    scale = torch.exp2(torch.randint(-2, 3, (rows, columns // block)).float())
    numbers = VALUES[(codes & 7).long()] * signs
    return packed, scale, numbers * scale.repeat_interleave(block, 1)


def same(result: Tensor, wanted: Tensor) -> None:
    assert result.shape == wanted.shape
    assert result.is_cuda
    if not SHAPE_ONLY:
        torch.testing.assert_close(result.cpu().float(), wanted, atol=0.05, rtol=0.01)


def refusal(call, *operands, **options) -> str:
    try:
        call(*operands, **options)
    except (RuntimeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "taken"


def block_scaled_products() -> None:
    cases = [
        (eight_bits, 32, torch.float8_e8m0fnu, ScalingType.BlockWise1x32),
        (four_bits, 16, EIGHT, ScalingType.BlockWise1x16),
        (four_bits, 32, torch.float8_e8m0fnu, ScalingType.BlockWise1x32),
    ]
    for make, block, dtype, scaling in cases:
        a, scale_a, wide_a = make(45, 96, block)
        b, scale_b, wide_b = make(272, 96, block)
        wanted = wide_a @ wide_b.t()
        scales = [in_tiles(scale.to(dtype)).cuda() for scale in (scale_a, scale_b)]
        operands = a.cuda(), b.cuda().t()
        result = scaled_mm(*operands, scales[0], scaling, scales[1], scaling, SWIZZLED, SWIZZLED)
        assert result.dtype == torch.bfloat16
        same(result, wanted)
        first = partial(torch._scaled_mm, *operands, *scales, out_dtype=torch.float32)
        if make is four_bits and block == 32:
            assert "CUBLAS_STATUS_NOT_SUPPORTED" in refusal(first)
        else:
            same(first(), wanted)
        few = scaled_mm, *operands, scales[0][:-1], scaling, scales[1], scaling
        assert "scale_a should have" in refusal(*few, SWIZZLED, SWIZZLED)
        assert refusal(*few).startswith("ValueError: swizzle_a must have 1 values, got 0")


def two_levels_of_scales() -> None:
    a, scale_a, wide_a = four_bits(32, 64, 16)
    b, scale_b, wide_b = four_bits(48, 64, 16)
    scales = [in_tiles(scale.to(EIGHT)).cuda() for scale in (scale_a, scale_b)]
    recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
    swizzles = [SWIZZLED, SwizzleType.NO_SWIZZLE]
    bias = torch.full((48,), 3.0)
    result = scaled_mm(
        a.cuda(),
        b.cuda().t(),
        [scales[0], torch.tensor([0.5], device="cuda")],
        recipe,
        [scales[1], torch.tensor([0.25], device="cuda")],
        recipe,
        swizzles,
        swizzles,
        bias=bias.bfloat16().cuda(),
    )
    same(result, wide_a @ wide_b.t() / 8 + 3)


def any_layout() -> None:
    a, b = torch.eye(32).to(EIGHT).cuda(), torch.randint(-8, 9, (32, 32)).to(EIGHT)
    one = torch.ones((), device="cuda")
    for left in (a, a.t()):
        for right in (b.cuda(), b.t().contiguous().cuda().t()):
            same(torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16), b.float())


def groups_of_blocks() -> None:
    ends, copies = [64, 96], 2
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    cases = [
        (eight_bits, 32, torch.float8_e8m0fnu, [ScalingType.BlockWise1x32]),
        (four_bits, 16, EIGHT, [ScalingType.BlockWise1x16, ScalingType.TensorWise]),
    ]
    for make, block, dtype, recipe in cases:
        parts = [make(rows, 128, block) for rows in (64, 32)]
        weights = [make(48, 128, block) for _ in range(copies)]
        packed = torch.cat([part[0].view(torch.uint8) for part in parts]).view(parts[0][0].dtype)
        stack = torch.stack([each[0].view(torch.uint8) for each in weights]).view(packed.dtype)
        scale_a = torch.cat([in_tiles(part[1]) for part in parts]).view(-1, 128 // block)
        scale_b = torch.stack([in_tiles(each[1]) for each in weights])
        wanted = torch.cat([x[2] @ w[2].t() for x, w in zip(parts, weights, strict=True)])
        scales = [scale_a.to(dtype).cuda()], [scale_b.to(dtype).cuda()]
        if len(recipe) == 2:
            for scale in scales:
                scale.append(torch.tensor([1.0, 1.0], device="cuda"))
        result = scaled_grouped_mm(
            packed.cuda(),
            stack.cuda().transpose(-1, -2),
            scales[0],
            recipe,
            scales[1],
            recipe,
            SWIZZLED,
            SWIZZLED,
            offs=offs,
        )
        same(result, wanted)
        shared = [[make(32, size, block) for size in (64, 32)] for _ in range(2)]
        packed_a, packed_b = (
            torch.cat([part[0].view(torch.uint8) for part in side], 1).view(packed.dtype)
            for side in shared
        )
        scales = tuple(
            [torch.cat([in_tiles(p[1]) for p in side]).view(128, -1).to(dtype).cuda()]
            for side in shared
        )
        if len(recipe) == 2:
            for scale in scales:
                scale.append(torch.tensor([2.0, 1.0], device="cuda"))
        result = scaled_grouped_mm(
            packed_a.cuda(),
            packed_b.cuda().t(),
            scales[0],
            recipe,
            scales[1],
            recipe,
            SWIZZLED,
            SWIZZLED,
            offs=offs,
        )
        each = [x[2] @ w[2].t() for x, w in zip(*shared, strict=True)]
        same(result, torch.stack([each[0] * (4 if len(recipe) == 2 else 1), each[1]]))


def squares_of_128() -> None:
    """Scale as DeepSeek does: one scale for 128 numbers of a row, or for a 128 x 128 square."""
    a, scale_a, wide_a = eight_bits(256, 384, 128)
    b, scale_b, wide_b = eight_bits(128, 384, 128)
    of_square = torch.tensor([[0.5, 2.0, 4.0]])
    wide_square = b.float() * of_square.repeat_interleave(128, 1)
    by_columns = [scale.t().contiguous().cuda().t() for scale in (scale_a, scale_b)]
    operands = a.cuda(), b.cuda().t()
    rows, square = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    padded = torch.nn.functional.pad(of_square, (0, 1)).cuda().t()
    calls = [
        (lambda: scaled_mm(*operands, by_columns[0], rows, by_columns[1], rows), wide_b),
        (lambda: scaled_mm(*operands, by_columns[0], rows, padded, square), wide_square),
        (
            lambda: torch._scaled_mm(
                *operands, by_columns[0], by_columns[1].t(), out_dtype=torch.bfloat16
            ),
            wide_b,
        ),
        (
            lambda: torch._scaled_mm(
                *operands, by_columns[0], of_square.cuda().t(), out_dtype=torch.bfloat16
            ),
            wide_square,
        ),
    ]
    for call, wide in calls:
        if MAJOR == 9:
            same(call(), wide_a @ wide.t())
        else:
            said = refusal(call)
            assert "DeepSeek style" in said or "CUBLAS_STATUS_NOT_SUPPORTED" in said
    if MAJOR == 9:
        wrong = scaled_mm, *operands, scale_a.cuda(), rows, by_columns[1], rows
        assert refusal(*wrong).startswith("ValueError: scale_a must have strides (1, 256)")


def scales_of_rows() -> None:
    a, b = (torch.randint(-8, 9, (size, 64)).to(EIGHT) for size in (32, 48))
    of_a, of_b = torch.rand(32, 1), torch.rand(1, 48)
    operands = a.cuda(), b.cuda().t()
    row = ScalingType.RowWise
    wanted = (a.float() @ b.float().t()) * of_a * of_b
    same(scaled_mm(*operands, of_a.cuda(), row, of_b.cuda(), row), wanted)
    gaps = [torch.cat([each, each], 1).cuda()[:, :64] for each in (a, b)]
    same(scaled_mm(gaps[0], gaps[1].t(), of_a.cuda(), row, of_b.cuda(), row), wanted)
    out = torch.empty(0, device="cuda", dtype=torch.bfloat16)
    torch._scaled_mm(*operands, of_a.cuda(), of_b.cuda(), out_dtype=torch.bfloat16, out=out)
    same(out, wanted)
    whole = ScalingType.TensorWise
    said = refusal(scaled_mm, *operands, of_a.cuda(), whole, of_b.cuda(), whole)
    assert said == "ValueError: scale_a must have 1 Float element"
    said = refusal(scaled_mm, *operands, of_a.cuda(), row, of_b[:, 1:].cuda(), row)
    assert said == "ValueError: scale_b must have 48 Float elements, got 47"
    said = refusal(scaled_mm, *operands, of_a[:, 0].cuda(), row, of_b.cuda(), row)
    assert said.startswith("IndexError: Dimension out of range")
    said = refusal(torch._scaled_mm, *operands, of_a.cuda(), of_b[:, 1:].cuda())
    assert said == "RuntimeError: Invalid scaling configuration."


def groups_of_rows() -> None:
    """Multiply groups of rows, of columns, of the shared dimension, and of a batch."""
    offs = torch.tensor([16, 32], dtype=torch.int32, device="cuda")
    row = ScalingType.RowWise
    of_parts, of_both = torch.rand(32), torch.rand(2, 32)
    matrix, wider, batch = (
        torch.randint(-8, 9, size).to(EIGHT) for size in ((32, 32), (48, 32), (2, 32, 32))
    )
    halves = slice(0, 16), slice(16, 32)
    for a, b in ((matrix, batch), (batch, matrix), (matrix, wider), (batch, batch)):
        shares = a.dim() == b.dim() == 2
        of_a, of_b = (
            torch.rand(2 * len(each)) if shares else of_parts if each.dim() == 2 else of_both
            for each in (a, b)
        )
        parts = []
        for i, half in enumerate(halves):
            left, right = (each[i] if each.dim() == 3 else each for each in (a, b))
            scale_left, scale_right = (
                scale[i] if scale.dim() == 2 else scale for scale in (of_a, of_b)
            )
            if shares:
                left, right = left[:, half], right[:, half]
                scale_left, scale_right = scale_left.chunk(2)[i], scale_right.chunk(2)[i]
            elif a.dim() == 2:
                left, scale_left = left[half], scale_left[half]
            elif b.dim() == 2:
                right, scale_right = right[half], scale_right[half]
            product = left.float() @ right.float().t()
            parts.append(product * scale_left[:, None] * scale_right)
        wanted = torch.stack(parts)
        if a.dim() != b.dim():
            wanted = torch.cat(parts, 0 if a.dim() == 2 else 1)
        given = None if a.dim() == b.dim() == 3 else offs
        operands = a.cuda(), b.cuda().transpose(-1, -2), of_a.cuda(), of_b.cuda()
        same(torch._scaled_grouped_mm(*operands, offs=given), wanted)
        second = (*operands[:3], row, operands[3], row)
        same(scaled_grouped_mm(*second, offs=given), wanted)
    a, b, of_a, of_b = matrix, batch, of_parts.cuda(), of_both.cuda()
    operands = a.cuda(), b.cuda().transpose(1, 2)
    said = refusal(torch._scaled_grouped_mm, *operands, of_a, of_b)
    assert said == "ValueError: Have to provide offsets if there is a 2d matrix"
    said = refusal(torch._scaled_grouped_mm, a.cuda(), b.cuda(), of_a, of_b, offs=offs)
    assert said == "ValueError: Expected mat2 to be transposed"
    said = refusal(torch._scaled_grouped_mm, *operands, of_a[1:], of_b, offs=offs)
    assert said == "RuntimeError: scale must have the same length as mat for arg 0"
    whole = ScalingType.TensorWise
    said = refusal(scaled_grouped_mm, *operands, of_a, whole, of_b, whole, offs=offs)
    assert said == "ValueError: No gemm implementation was found"


torch.manual_seed(0)
scales_of_rows()
squares_of_128()
if MAJOR >= 9:
    groups_of_rows()
if MAJOR == 10:
    block_scaled_products()
    two_levels_of_scales()
    any_layout()
    groups_of_blocks()
else:
    a, scale_a, _ = eight_bits(32, 64, 32)
    tiles = in_tiles(scale_a.to(torch.float8_e8m0fnu)).cuda()
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in refusal(
        torch._scaled_mm, a.cuda(), a.cuda().t(), tiles, tiles, out_dtype=torch.bfloat16
    )
print("multiplied")
