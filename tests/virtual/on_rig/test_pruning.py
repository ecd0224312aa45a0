"""Pruning to 2:4 sparsity on the GPU during training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.sparse import (
    SparseSemiStructuredTensor,
    SparseSemiStructuredTensorCUSPARSELT,
    SparseSemiStructuredTensorCUTLASS,
)
from torch.sparse._semi_structured_conversions import (
    _compute_compressed_swizzled_bitmask,
    sparse_semi_structured_from_dense_cutlass,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of SparseSemiStructuredTensor:UserWarning"
)

CUTLASS_RUNS = torch.cuda.get_device_capability()[0] == 8
cutlass = pytest.mark.skipif(not CUTLASS_RUNS, reason="CUTLASS's kernels need capability 8.x")
# PyTorch writes the metadata of capability 8.x for cuSPARSELt too. An H100 reads other numbers.
cusparselt = pytest.mark.skipif(
    not CUTLASS_RUNS, reason="PyTorch prunes to cuSPARSELt's metadata of capability 8.x"
)
WAYS = [
    pytest.param(SparseSemiStructuredTensorCUTLASS, marks=cutlass),
    pytest.param(SparseSemiStructuredTensorCUSPARSELT, marks=cusparselt),
]
FLOATS = [torch.float16, torch.bfloat16]


def distinct(rows: int, columns: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Return numbers whose absolute values are distinct within each 4x4 tile."""
    tiles = torch.rand(rows // 4, columns // 4, 16).argsort(-1) + 1
    signs = torch.randint(0, 2, tiles.shape) * 2 - 1
    numbers = (tiles * signs).view(rows // 4, columns // 4, 4, 4).transpose(1, 2)
    return numbers.reshape(rows, columns).to(dtype).cuda()


def prune_in_python(
    matrix: Tensor, rank: Callable[[Tensor], Tensor] = torch.Tensor.clone
) -> Tensor:
    """Keep the largest numbers of each tile, at most two in each of its rows and columns."""
    matrix = matrix.cpu()
    ranks = rank(matrix).tolist()
    kept = [[False] * matrix.shape[1] for _ in range(matrix.shape[0])]
    for top in range(0, matrix.shape[0], 4):
        for left in range(0, matrix.shape[1], 4):
            places = [(top + row, left + column) for row in range(4) for column in range(4)]
            places.sort(key=lambda place: ranks[place[0]][place[1]], reverse=True)
            in_row, in_column = [0] * 4, [0] * 4
            for row, column in places:
                if in_row[row - top] < 2 and in_column[column - left] < 2:
                    kept[row][column] = True
                    in_row[row - top] += 1
                    in_column[column - left] += 1
    return (matrix * torch.tensor(kept)).cuda()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_numbers_stay(
    way: type[SparseSemiStructuredTensor], dtype: torch.dtype
) -> None:
    matrix = distinct(128, 256, dtype)
    pruned = way.prune_dense_static_sort(matrix)
    assert torch.equal(pruned.to_dense(), prune_in_python(matrix))
    by_size = way.prune_dense_static_sort(matrix, algorithm="largest_abs_values_greedy")
    assert torch.equal(by_size.to_dense(), prune_in_python(matrix, torch.abs))


@pytest.mark.parametrize("way", WAYS)
def test_products_of_pruned_matrices(way: type[SparseSemiStructuredTensor]) -> None:
    matrix = distinct(128, 256)
    pruned, dense = way.prune_dense_static_sort(matrix), prune_in_python(matrix)
    wide, tall = distinct(64, 256), distinct(64, 128)
    torch.testing.assert_close(pruned @ wide.t(), dense @ wide.t())
    torch.testing.assert_close(wide @ pruned.t(), wide @ dense.t())
    torch.testing.assert_close(tall @ pruned, tall @ dense)
    torch.testing.assert_close(pruned.t() @ tall.t(), dense.t() @ tall.t())


def test_cutlass_gets_the_metadata_that_pytorch_computes() -> None:
    tile = torch.tensor([[1, 2, 0, 0], [0, 3, 4, 0], [0, 0, 5, 6], [7, 0, 0, 8]])
    dense = tile.repeat(16, 32).half().cuda()
    kept, meta, kept_t, meta_t, masks = torch._sparse_semi_structured_tile(dense)
    for ours, our_meta, whole in ((kept, meta, dense), (kept_t, meta_t, dense.t().contiguous())):
        theirs, their_meta = sparse_semi_structured_from_dense_cutlass(whole)
        assert torch.equal(ours, theirs)
        assert torch.equal(our_meta, their_meta.as_strided(our_meta.shape, our_meta.stride()))
    assert torch.equal(masks.view(-1), _compute_compressed_swizzled_bitmask(dense).view(-1))


@pytest.mark.filterwarnings("ignore:_sparse_semi_structured_linear is deprecated:UserWarning")
def test_a_tile_may_keep_seven_numbers() -> None:
    matrix = distinct(32, 64)
    matrix[:4, :4] = torch.tensor([[2, -1, -2, -3], [-1, 8, -1, 6], [-1, -1, 4, 5], [-1, 3, 7, -1]])
    kept, meta, kept_t, meta_t, _ = torch._sparse_semi_structured_tile(matrix)
    assert kept[0, :2].tolist() == kept_t[0, :2].tolist() == [2, 0]
    assert meta_t.shape == (64, 2, 2)
    if CUTLASS_RUNS:
        dense = torch._sparse_semi_structured_linear(torch.eye(64).half().cuda(), kept, meta).t()
        assert dense[0, :4].tolist() == [2, 0, 0, 0]


@cutlass
def test_causal_pruning_depends_on_rows_above_only() -> None:
    tile = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1]])
    matrix = tile.repeat(32, 32).half().cuda()
    pruned = SparseSemiStructuredTensorCUTLASS.prune_dense_static_sort(matrix, "causal1122")
    wanted = [[0, 0, 0, 4], [0, 0, 0, 4], [0, 2, 3, 0], [4, 3, 0, 0]]
    assert pruned.to_dense()[:4, :4].tolist() == wanted


@cutlass
def test_masks_prune_other_matrices() -> None:
    matrix, other = distinct(64, 128), distinct(64, 128)
    kept, meta, kept_t, meta_t, masks = torch._sparse_semi_structured_tile(matrix)
    again, again_t = torch._sparse_semi_structured_apply(matrix, masks)
    assert torch.equal(again, kept)
    assert torch.equal(again_t, kept_t)
    wanted = other * prune_in_python(matrix).bool()
    assert torch.equal(torch._sparse_semi_structured_apply_dense(other, masks), wanted)
    by_columns = other.t().contiguous().t()
    assert torch.equal(torch._sparse_semi_structured_apply_dense(by_columns, masks), wanted)
    packed, packed_t = torch._sparse_semi_structured_apply(other, masks)
    pruned = SparseSemiStructuredTensorCUTLASS(
        other.shape, packed, meta, packed_t, meta_t, compressed_swizzled_bitmask=masks
    )
    assert torch.equal(pruned.to_dense(), wanted)


class PrunedLinear(torch.autograd.Function):
    """A linear layer that prunes its weight in each step, as libraries for sparse training do."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx, tokens: Tensor, weight: Tensor
    ) -> Tensor:
        context.weight = SparseSemiStructuredTensorCUTLASS.prune_dense_static_sort(weight)
        context.tokens = tokens
        return tokens @ context.weight.t()

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, gradient: Tensor
    ) -> tuple[Tensor, Tensor]:
        masks = context.weight.compressed_swizzled_bitmask
        of_weight = gradient.t() @ context.tokens
        return (
            gradient @ context.weight,
            torch._sparse_semi_structured_apply_dense(of_weight, masks),
        )


@cutlass
def test_a_step_of_sparse_training() -> None:
    tokens = distinct(32, 128).requires_grad_()
    weight = distinct(64, 128).requires_grad_()
    result = PrunedLinear.apply(tokens, weight)
    result.backward(torch.ones_like(result))
    gradients = [tokens.grad, weight.grad]
    pruned = prune_in_python(weight.detach()).requires_grad_()
    tokens.grad = None
    linear(tokens, pruned).sum().backward()
    assert torch.equal(gradients[0], tokens.grad)
    assert torch.equal(gradients[1], pruned.grad * pruned.bool())


def test_sizes_are_those_of_whole_warps() -> None:
    matrix = distinct(40, 96)
    kept, meta, kept_t, meta_t, masks = torch._sparse_semi_structured_tile(matrix)
    assert (kept.shape, kept_t.shape) == ((64, 64), (96, 32))
    assert (meta.shape, meta_t.shape) == ((64, 2, 4), (96, 2, 2))
    assert masks.shape == (8, 16, 8)
    assert kept.dtype == torch.float16
    assert meta.dtype == torch.int16
    assert masks.dtype == torch.uint8


def test_gpu_limits_are_checked() -> None:
    matrix = distinct(128, 128)
    tile = torch._sparse_semi_structured_tile
    with pytest.raises(RuntimeError, match="Float"):
        tile(matrix.float())
    with pytest.raises(RuntimeError, match="Can only sparsify 2d tensors"):
        tile(matrix[None])
    with pytest.raises(RuntimeError, match="Sparsify the transpose otherwise"):
        tile(matrix.t())
    with pytest.raises(RuntimeError, match="Number of cols should be multiple of 32"):
        tile(matrix[:, :48].contiguous())
    with pytest.raises(RuntimeError, match="Only supports rows/cols multiples of 128"):
        tile(matrix[:64], use_cutlass=False)
    with pytest.raises(RuntimeError, match='Unknown algorithm "smallest"'):
        tile(matrix, algorithm="smallest")
    masks = tile(matrix)[4]
    with pytest.raises(RuntimeError, match="only `float16` and `bfloat16` are supported"):
        torch._sparse_semi_structured_apply(matrix.float(), masks)
    with pytest.raises(RuntimeError, match=r"threads_masks.size\(0\)"):
        torch._sparse_semi_structured_apply(matrix[:64], masks)
    with pytest.raises(RuntimeError, match="either RowMajor or ColMajor"):
        torch._sparse_semi_structured_apply_dense(matrix.repeat(1, 2)[::2, ::2], masks)


@pytest.mark.filterwarnings("ignore:torch._cslt_sparse_mm_search is deprecated:UserWarning")
def test_a_search_for_the_fastest_algorithm() -> None:
    matrix = prune_in_python(distinct(32, 64))
    compressed = torch._cslt_compress(matrix)
    assert torch._cslt_sparse_mm_search(compressed, distinct(64, 32)) >= 0
