"""Sparse tensors on a device: construction, copies, computation, training."""

from __future__ import annotations

import re

import pytest
import torch

# PyTorch warns once a process that compressed layouts are a prototype and that indices are
# not checked.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

DEVICE = torch.device("cuda", 1)


@pytest.fixture
def dense() -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).relu()


def test_coordinates_are_made_of_device_tensors(dense: torch.Tensor) -> None:
    sparse = dense.to(DEVICE).to_sparse()
    assert sparse.is_cuda
    assert sparse.is_sparse
    assert sparse.indices().device == sparse.values().device == DEVICE
    assert torch.equal(sparse.to_dense().cpu(), dense)


def test_values_are_the_operand_itself() -> None:
    indices = torch.tensor([[0, 1, 1], [2, 0, 2]], device=DEVICE)
    values = torch.tensor([3.0, 4.0, 5.0], device=DEVICE)
    sparse = torch.sparse_coo_tensor(indices, values, (2, 3))
    assert sparse._values().data_ptr() == values.data_ptr()
    values.mul_(2)
    assert sparse.to_dense().sum().item() == 24


def test_made_of_lists() -> None:
    sparse = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), device=DEVICE)
    assert sparse.device == DEVICE
    assert (sparse + sparse).to_dense().sum().item() == 14


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_moves_and_multiplies(dense: torch.Tensor, layout: torch.layout) -> None:
    sparse = dense.to_sparse(layout=layout)
    there = sparse.to(DEVICE)
    assert there.device == DEVICE
    assert there.layout == layout
    assert there.cpu().device.type == "cpu"
    assert there.to("cuda:0").get_device() == 0
    assert torch.equal(there.to_dense().cpu(), dense)
    right = torch.randn(5, 3)
    torch.testing.assert_close((there @ right.to(DEVICE)).cpu(), dense @ right)


def test_changes_in_place(dense: torch.Tensor) -> None:
    sparse = dense.to(DEVICE).to_sparse()
    sparse.mul_(2)
    sparse.add_(sparse)
    assert torch.equal(sparse.to_dense().cpu(), dense * 4)
    sparse.zero_()
    assert sparse._nnz() == 0


def test_gradient_of_a_sparse_product(dense: torch.Tensor) -> None:
    sparse = dense.to(DEVICE).to_sparse().requires_grad_()
    right = torch.ones(5, 3, device=DEVICE, requires_grad=True)
    torch.sparse.mm(sparse, right).sum().backward()
    assert sparse.grad.is_sparse
    assert sparse.grad.device == right.grad.device == DEVICE
    torch.testing.assert_close(right.grad.cpu(), dense.t() @ torch.ones(4, 3))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_of_an_embedding(optimizer: type[torch.optim.Optimizer]) -> None:
    weights = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 3, sparse=True).to(device)
        steps = optimizer(embedding.parameters(), lr=0.1)
        for rows in ([1, 2, 2], [3, 2]):
            embedding(torch.tensor(rows, device=device)).pow(2).sum().backward()
        steps.step()
        assert embedding.weight.grad.is_sparse
        weights.append(embedding.weight.detach().cpu())
    torch.testing.assert_close(*weights)


@pytest.mark.gpus(2)
def test_two_devices_are_refused_in_cudas_words(dense: torch.Tensor) -> None:
    sparse = dense.to(DEVICE).to_sparse()
    with pytest.raises(RuntimeError, match="wrapper_SparseCUDA_addmm"):
        torch.sparse.mm(sparse, torch.ones(5, 3, device="cuda:0"))


def test_nothing_stays_allocated(dense: torch.Tensor) -> None:
    before = torch.cuda.memory_allocated(DEVICE)
    sparse = dense.to(DEVICE).to_sparse()
    assert torch.cuda.memory_allocated(DEVICE) > before
    del sparse
    assert torch.cuda.memory_allocated(DEVICE) == before


NARROW = [torch.float16, torch.bfloat16]
COMPRESSED = {
    "csr": lambda tensor: tensor.to_sparse_csr(),
    "csc": lambda tensor: tensor.to_sparse_csc(),
    "bsr": lambda tensor: tensor.to_sparse_bsr((2, 2)),
}


def equal_but_for_rounding(result: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.device == DEVICE
    assert result.dtype == dtype
    torch.testing.assert_close(result.cpu().float(), wanted, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("layout", COMPRESSED)
def test_products_in_half_precision(dense: torch.Tensor, layout: str, dtype: torch.dtype) -> None:
    dense = torch.nn.functional.pad(dense, (0, 1))
    sparse = COMPRESSED[layout](dense.to(dtype)).to(DEVICE)
    right, vector, total = torch.randn(6, 3), torch.randn(6), torch.randn(4, 3)
    x, y, z = (tensor.to(DEVICE, dtype) for tensor in (right, vector, total))
    equal_but_for_rounding(sparse @ x, dense @ right, dtype)
    if layout == "bsr":
        with pytest.raises(NotImplementedError, match='"block_sparse_mv" not implemented for'):
            sparse @ y
    else:
        equal_but_for_rounding(sparse @ y, dense @ vector, dtype)
    equal_but_for_rounding(
        torch.addmm(z, sparse, x, beta=2, alpha=3), 2 * total + 3 * dense @ right, dtype
    )
    out = torch.empty(4, 3, dtype=dtype, device=DEVICE)
    torch.mm(sparse, x, out=out)
    equal_but_for_rounding(out, dense @ right, dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_products_in_half_precision(
    dense: torch.Tensor, layout: torch.layout, dtype: torch.dtype
) -> None:
    sparse = dense.to(DEVICE, dtype).to_sparse(layout=layout)
    right = dense.t().contiguous().to(DEVICE, dtype).to_sparse(layout=layout)
    for result in (sparse @ right, torch.sparse.mm(sparse, right)):
        assert result.layout == layout
        equal_but_for_rounding(result.to_dense(), dense @ dense.t(), dtype)


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_in_half_precision(dense: torch.Tensor, dtype: torch.dtype) -> None:
    sparse = dense.to(DEVICE, dtype).to_sparse()
    other = dense.flip(0).to(DEVICE, dtype).to_sparse()
    equal_but_for_rounding((sparse + other).to_dense(), dense + dense.flip(0), dtype)
    sparse.add_(other, alpha=2)
    equal_but_for_rounding(sparse.to_dense(), dense + 2 * dense.flip(0), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("block", [(1, 1), (2, 1)])
def test_blocks_that_cusparse_does_not_support(block: tuple[int, int], dtype: torch.dtype) -> None:
    sparse = torch.eye(4, dtype=dtype).to_sparse_bsr(block).to(DEVICE)
    words = "size(-1) > 1" if block == (1, 1) else "mat1.values().size(2) == mat1.values().size(1)"
    with pytest.raises(RuntimeError, match=re.escape(f"{words} INTERNAL ASSERT FAILED")):
        sparse @ torch.ones(4, 3, dtype=dtype, device=DEVICE)


def test_batches_of_compressed_matrices_are_refused(dense: torch.Tensor) -> None:
    sparse = torch.stack([dense, dense]).to_sparse_csr().to(DEVICE)
    right, total = torch.ones(2, 5, 3, device=DEVICE), torch.ones(2, 4, 3, device=DEVICE)
    words = "Support for batched CSR indices and values is not implemented"
    with pytest.raises(RuntimeError, match=words):
        torch.bmm(sparse, right)
    with pytest.raises(RuntimeError, match=words):
        torch.baddbmm(total, sparse, right, beta=2)
    assert torch.baddbmm(total[..., :0], sparse, right[..., :0]).shape == (2, 4, 0)


def test_operations_that_cusparse_does_not_support_in_half_precision(dense: torch.Tensor) -> None:
    sparse = dense.to(DEVICE, torch.float16).to_sparse_csr()
    with pytest.raises(NotImplementedError, match="sampled_addmm_out_sparse_csr"):
        torch.sparse.sampled_addmm(sparse, sparse.to_dense()[:, :4], sparse.to_dense())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_angles_of_complex_halves(layout: torch.layout) -> None:
    numbers = torch.tensor([[1j, 0], [-1, 1 + 1j]], dtype=torch.complex64)
    sparse = numbers.to(DEVICE, torch.complex32).to_sparse(layout=layout)
    angles = torch.angle(sparse)
    assert angles.dtype == torch.float16
    torch.testing.assert_close(
        angles.to_dense().cpu().float(), numbers.angle(), atol=1e-3, rtol=1e-3
    )


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning")
@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_in_blocks(upper: bool, transpose: bool, unitriangular: bool) -> None:
    full = torch.randn(4, 4, dtype=torch.float64) + 4 * torch.eye(4)
    matrix = full.triu() if upper else full.tril()
    right = torch.randn(4, 3, dtype=torch.float64)
    blocks = matrix.to_sparse_bsr((2, 2)).to(DEVICE)
    how = {"upper": upper, "transpose": transpose, "unitriangular": unitriangular}
    solution = torch.triangular_solve(right.to(DEVICE), blocks, **how).solution
    expected = torch.linalg.solve_triangular(
        matrix.mT if transpose else matrix,
        right,
        upper=upper != transpose,
        unitriangular=unitriangular,
    )
    torch.testing.assert_close(solution.cpu(), expected)
