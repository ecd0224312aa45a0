"""Matrices with 2:4 sparsity."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.sparse import SparseSemiStructuredTensor, to_sparse_semi_structured
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:_sparse_semi_structured_linear is deprecated:UserWarning"),
]

CUTLASS_RUNS = torch.cuda.get_device_capability()[0] == 8
cutlass = pytest.mark.skipif(not CUTLASS_RUNS, reason="CUTLASS's kernels need capability 8.x")

NARROW = [torch.float16, torch.bfloat16, torch.int8]


@pytest.fixture(params=[pytest.param(True, marks=cutlass), False], ids=["cutlass", "cusparselt"])
def by_cutlass(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = SparseSemiStructuredTensor._FORCE_CUTLASS
    SparseSemiStructuredTensor._FORCE_CUTLASS = request.param
    yield request.param
    SparseSemiStructuredTensor._FORCE_CUTLASS = before


def half_zeros(rows: int, columns: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return small integers, two nonzero of every four (float32: one of every two)."""
    kept = 2 if dtype == torch.float32 else 4
    order = torch.rand(rows, columns // kept, kept).argsort(-1)
    numbers = torch.randint(1, 5, order.shape) * (order < kept // 2)
    return numbers.view(rows, columns).to(dtype).cuda()


def test_products(by_cutlass: bool) -> None:
    for dtype in (*NARROW, torch.float32) if by_cutlass else NARROW:
        matrix = half_zeros(128, 256, dtype)
        other = torch.randint(-1, 2, (64, 256)).to(dtype).cuda().t()
        product = to_sparse_semi_structured(matrix) @ other
        assert product.device == matrix.device
        assert product.dtype == dtype
        wanted = matrix.cpu().float() @ other.cpu().float()
        if dtype == torch.int8:
            wanted = wanted.clamp(-128, 127)
        torch.testing.assert_close(product.cpu().float(), wanted, atol=0.5, rtol=0.01)


def test_a_layer_of_a_model(by_cutlass: bool) -> None:
    linear = nn.Linear(256, 128).half().cuda().eval()
    matrix = half_zeros(128, 256)
    linear.weight = nn.Parameter(matrix)
    tokens = torch.randn(2, 32, 256, dtype=torch.float16, device="cuda")
    with torch.inference_mode():
        wanted = linear(tokens)
        linear.weight = nn.Parameter(to_sparse_semi_structured(linear.weight))
        result = linear(tokens)
    torch.testing.assert_close(result, wanted, atol=0.1, rtol=0.01)
    assert torch.equal(linear.weight.to_dense(), matrix)


def test_the_whole_matrix_comes_back(by_cutlass: bool) -> None:
    matrix = half_zeros(64, 128)
    matrix[0, :4] = 0
    matrix[1, :4] = torch.tensor([0, 7, 0, 0])
    assert torch.equal(to_sparse_semi_structured(matrix).to_dense(), matrix)


@cutlass
def test_the_operators_of_cutlass() -> None:
    matrix, other = half_zeros(64, 128), torch.ones(128, 16, dtype=torch.float16, device="cuda")
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    bias = torch.arange(64, dtype=torch.float16, device="cuda")
    sums = torch._sparse_semi_structured_addmm(bias, kept, meta, other, alpha=2, beta=3)
    assert torch.equal(sums, 2 * (matrix @ other) + 3 * bias[:, None])
    linear = torch._sparse_semi_structured_linear(
        other.t().view(2, 8, 128), kept, meta, bias=-100 * bias, activation="relu"
    )
    assert linear.shape == (2, 8, 64)
    wanted = (other.t() @ matrix.t() - 100 * bias).relu().view(2, 8, 64)
    assert torch.equal(linear, wanted)


@pytest.mark.skipif(CUTLASS_RUNS, reason="this GPU runs CUTLASS's kernels")
def test_other_gpus_than_of_capability_8_are_refused_by_cutlass() -> None:
    matrix, other = half_zeros(64, 128), torch.ones(128, 16, dtype=torch.float16, device="cuda")
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    with pytest.raises(RuntimeError, match=r"Supported only on GPUs with compute capability 8\.x"):
        torch._sparse_semi_structured_mm(kept, meta, other)
    with pytest.raises(
        RuntimeError, match="_sparse_semi_structured_linear: Supported only on GPUs"
    ):
        torch._sparse_semi_structured_linear(other.t(), kept, meta)


@pytest.mark.parametrize(("rows", "columns"), [(32, 128), (64, 256), (128, 512)])
def test_the_sizes_of_compressed_matrices(rows: int, columns: int) -> None:
    # A Hopper GPU's codes are tiles of 64 rows.
    coded_rows = max(rows, 64) if torch.cuda.get_device_capability()[0] == 9 else rows
    for dtype, sixteenths in ((torch.float16, 1), (torch.int8, 2)):
        compressed = torch._cslt_compress(half_zeros(rows, columns, dtype))
        codes = columns * sixteenths // 16 * coded_rows // rows
        assert compressed.shape == (rows, columns // 2 + codes)


@pytest.mark.virtual_only("cuSPARSELt reads past the end of the matrix")
@pytest.mark.parametrize("columns", [68, 70, 256])
def test_products_of_more_columns_are_refused(columns: int) -> None:
    compressed = torch._cslt_compress(half_zeros(32, 64))
    other = torch.ones(columns, 16, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match=rf"\[32, 36\] does not have {columns} columns"):
        torch._cslt_sparse_mm(compressed, other)


def test_products_of_int8_have_wider_results() -> None:
    matrix = half_zeros(32, 128, torch.int8)
    other = torch.full((16, 128), 100, dtype=torch.int8, device="cuda").t()
    compressed = torch._cslt_compress(matrix)
    wide = torch._cslt_sparse_mm(compressed, other, out_dtype=torch.int32, transpose_result=True)
    assert torch.equal(wide.cpu(), (matrix.cpu().int() @ other.cpu().int()).t())
    assert torch._cslt_sparse_mm(compressed, other).max().item() == 127


@cutlass
def test_gpu_limits_are_checked() -> None:
    matrix, other = half_zeros(64, 128), torch.ones(128, 16, dtype=torch.float16, device="cuda")
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    with pytest.raises(RuntimeError, match=r"Expected mat1 datatype .*Half, but got float"):
        torch._sparse_semi_structured_mm(kept.float(), meta, other)
    with pytest.raises(RuntimeError, match="Expected mat1 argument to have 32 columns"):
        torch._sparse_semi_structured_mm(kept, meta, other[:64])
    with pytest.raises(RuntimeError, match="CUTLASS error: Error Misaligned Operand"):
        torch._sparse_semi_structured_mm(kept, meta, other[:, :4].contiguous())
    with pytest.raises(RuntimeError, match="Expected meta datatype Short"):
        torch._sparse_semi_structured_mm(kept, meta.int(), other)
    narrow = half_zeros(64, 128, torch.int8)
    kept, meta = sparse_semi_structured_from_dense_cutlass(narrow)
    with pytest.raises(RuntimeError, match="Combination of row-major and row-major layouts"):
        torch._sparse_semi_structured_mm(kept, meta, other.to(torch.int8))


def test_cusparselt_is_available() -> None:
    assert torch.backends.cusparselt.is_available()


def test_sums_of_int8_saturate() -> None:
    matrix = half_zeros(32, 128, torch.int8)
    compressed = torch._cslt_compress(matrix)
    for number, end in ((100, 127), (-100, -128)):
        other = torch.full((16, 128), number, dtype=torch.int8, device="cuda").t()
        assert torch._cslt_sparse_mm(compressed, other).unique().tolist() == [end]


@pytest.mark.parametrize("place", range(4))
def test_one_number_of_four_keeps_its_position(by_cutlass: bool, place: int) -> None:
    matrix = half_zeros(64, 128)
    matrix[3] = 0
    matrix[3, place::4] = 7
    assert torch.equal(to_sparse_semi_structured(matrix).to_dense(), matrix)


def test_factors_of_rows_and_of_the_whole() -> None:
    matrix, other = half_zeros(32, 128), torch.ones(128, 16, dtype=torch.float16, device="cuda")
    compressed, bias = torch._cslt_compress(matrix), torch.arange(32, device="cuda").half()
    by_rows = torch.arange(32.0, device="cuda")
    if torch.cuda.get_device_capability()[0] == 9:
        with pytest.raises(RuntimeError, match=r"operation not supported .*ALPHA_VECTOR_SCALING"):
            torch._cslt_sparse_mm(compressed, other, bias=bias, alpha=by_rows)
        by_rows = torch.tensor([3.0], device="cuda")
    for alpha in (torch.tensor(2.0, device="cuda"), by_rows):
        result = torch._cslt_sparse_mm(compressed, other, bias=bias, alpha=alpha)
        factor = alpha if alpha.dim() == 0 else alpha[:, None]
        assert torch.equal(result, ((matrix @ other).float() * factor + bias[:, None]).half())


@cutlass
@pytest.mark.parametrize("name", ["none", "relu", "silu"])
def test_activations(name: str) -> None:
    matrix, x = half_zeros(64, 128), torch.randn(16, 128, device="cuda").half()
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    result = torch._sparse_semi_structured_linear(x, kept, meta, activation=name)
    wanted = x.float() @ matrix.float().t()
    wanted = wanted if name == "none" else getattr(nn.functional, name)(wanted)
    torch.testing.assert_close(result.float(), wanted, atol=0.1, rtol=0.01)


@cutlass
def test_operators_check_their_operands() -> None:
    matrix, other = half_zeros(64, 128), torch.ones(128, 16, dtype=torch.float16, device="cuda")
    kept, meta = sparse_semi_structured_from_dense_cutlass(matrix)
    with pytest.raises(RuntimeError, match='Activation "gelu" is not supported'):
        torch._sparse_semi_structured_linear(other.t(), kept, meta, activation="gelu")
    compressed = torch._cslt_compress(matrix)
    with pytest.raises(RuntimeError, match="only available for int8/fp8 inputs"):
        torch._cslt_sparse_mm(compressed, other, out_dtype=torch.float32)
    kept, meta = sparse_semi_structured_from_dense_cutlass(half_zeros(64, 128, torch.int8))
    columns = torch.ones(4, 128, dtype=torch.int8, device="cuda").t()
    with pytest.raises(RuntimeError, match="Error Misaligned Operand"):
        torch._sparse_semi_structured_mm(kept, meta, columns)
