"""Dtypes and sizes that CUDA refuses are refused in shape-only mode too.

More than 400 lines: one table of calls, each with the message that CUDA has for the call.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from refused_dtypes import KERNELS, check_refusals
from torch import Tensor
from torch.nn import functional

HALF, DOUBLE, COMPLEX = torch.float16, torch.float64, torch.complex64

# Until PyTorch 2.15, sort and topk check the dtype before a device's kernel runs.
KERNELS_CHECK_ORDER = torch.__version__ >= (2, 15)


def floats(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, device="cuda", dtype=dtype)


def numbers(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(size, device="cuda", dtype=dtype)


def truths(*size: int) -> Tensor:
    return numbers(*size, dtype=torch.bool)


def put(tensor: Tensor, where: tuple[Tensor | slice, ...], values: Tensor) -> None:
    tensor[where] = values


Refused = tuple[Callable[[], object], type[Exception], str]

REFUSED: dict[str, Refused] = {
    "rows of two lengths behind a vector without numbers": (
        lambda: torch.cat([floats(0), floats(2, 3), floats(2, 4)]),
        RuntimeError,
        "Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for "
        "tensor number 2 in the list.",
    ),
    "a target of int32": (
        lambda: functional.cross_entropy(floats(4, 10), numbers(4, dtype=torch.int32)),
        NotImplementedError,
        "\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
    ),
    "a target of floats for an image": (
        lambda: functional.nll_loss(floats(4, 10, 3, 3), floats(4, 3, 3)),
        RuntimeError,
        "expected scalar type Long but found Float",
    ),
    "a target of two dimensions": (
        lambda: functional.cross_entropy(floats(4, 10), numbers(4, 1)),
        RuntimeError,
        "multi-target not supported",
    ),
    "weights of classes of another dtype": (
        lambda: functional.cross_entropy(floats(4, 10), numbers(4), floats(10, dtype=HALF)),
        RuntimeError,
        "expected scalar type Float but found Half",
    ),
    "a product of two dtypes": (
        lambda: floats(2, 2) @ floats(2, 2, dtype=HALF),
        RuntimeError,
        "expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
    ),
    "a layer of another dtype": (
        lambda: functional.linear(floats(2, 2, dtype=HALF), floats(2, 2), floats(2)),
        RuntimeError,
        "mat1 and mat2 must have the same dtype, but got Half and Float",
    ),
    "a bias of another dtype": (
        lambda: functional.linear(floats(2, 2), floats(2, 2), floats(2, dtype=HALF)),
        RuntimeError,
        "self and mat2 must have the same dtype, but got Half and Float",
    ),
    "a convolution's bias of another size": (
        lambda: functional.conv2d(floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(3)),
        RuntimeError,
        "expected bias to be 1-dimensional with 4 elements, but got bias of size [3] instead",
    ),
    "a transposed convolution's channels": (
        lambda: functional.conv_transpose2d(floats(1, 2, 8, 8), floats(3, 4, 3, 3)),
        RuntimeError,
        "to have 3 channels, but got 2 channels instead",
    ),
    "a normalization's weight of another dtype": (
        lambda: functional.layer_norm(floats(2, 3, dtype=HALF), (3,), floats(3), floats(3)),
        RuntimeError,
        "expected scalar type Half but found Float",
    ),
    "an index of floats": (
        lambda: floats(4)[floats(2)],
        IndexError,
        "tensors used as indices must be long, int, byte or bool tensors",
    ),
    "indices of two sizes": (
        lambda: floats(4, 4)[numbers(2), numbers(3)],
        IndexError,
        "could not be broadcast together with shapes [2], [3]",
    ),
    "index_select with floats": (
        lambda: floats(4).index_select(0, floats(2)),
        RuntimeError,
        "Expected dtype int32 or int64 for index",
    ),
    "index_select with a matrix": (
        lambda: floats(4).index_select(0, numbers(2, 2)),
        IndexError,
        "Index is supposed to be a vector",
    ),
    "index_add of another dtype": (
        lambda: floats(4, 4).index_add(0, numbers(2), floats(2, 4, dtype=HALF)),
        RuntimeError,
        "self (Float) and source (Half) must have the same scalar type",
    ),
    "index_copy with int32": (
        lambda: floats(4, 4).index_copy(0, numbers(2, dtype=torch.int32), floats(2, 4)),
        RuntimeError,
        "Expected a long tensor for index, but got Int",
    ),
    "index_copy of more than there are indices": (
        lambda: floats(4, 4).index_copy(0, numbers(2), floats(3, 4)),
        IndexError,
        "index_copy_(): Number of indices (2) should be equal to source.size(dim) (3)",
    ),
    "index_copy of other rows": (
        lambda: floats(4, 4).index_copy(0, numbers(2), floats(2, 5)),
        RuntimeError,
        "Destination slice shape: 4 at dimension 0 and source slice shape: 5 at dimension 0.",
    ),
    "index_copy with a matrix": (
        lambda: floats(4, 4).index_copy(0, numbers(2, 2), floats(2, 4)),
        IndexError,
        "index_copy_(): Index should have dimension 1 or 0 (got 2)",
    ),
    "output padding as large as the stride": (
        lambda: functional.conv_transpose1d(
            floats(1, 2, 5), floats(2, 3, 3), stride=2, output_padding=2
        ),
        RuntimeError,
        "but got output_padding_height: 0 output_padding_width: 2 stride_height: 1 "
        "stride_width: 2 dilation_height: 1 dilation_width: 1",
    ),
    "index_fill with int32": (
        lambda: floats(4, 4).index_fill(0, numbers(2, dtype=torch.int32), 1.0),
        IndexError,
        "Expected dtype int64 for index",
    ),
    "index_put of another dtype": (
        lambda: floats(4).index_put((numbers(2),), floats(2, dtype=HALF)),
        RuntimeError,
        "got Float for the destination and Half for the source",
    ),
    "a mask of floats": (
        lambda: floats(4).masked_fill(floats(4), 0.0),
        RuntimeError,
        "masked_fill only supports boolean masks, but got dtype Float",
    ),
    "a loss of integers": (
        lambda: functional.smooth_l1_loss(numbers(2), numbers(2)),
        NotImplementedError,
        "\"smooth_l1_cuda\" not implemented for 'Long'",
    ),
    "softmax of integers": (
        lambda: functional.softmax(numbers(2, 3), -1),
        NotImplementedError,
        "\"host_softmax\" not implemented for 'Long'",
    ),
    "softmax along a dimension that is not there": (
        lambda: functional.softmax(floats(2, 3), 2),
        IndexError,
        "Dimension out of range",
    ),
    "gelu of integers": (
        lambda: functional.gelu(numbers(3)),
        NotImplementedError,
        "\"GeluCUDAKernelImpl\" not implemented for 'Long'",
    ),
    "cross entropy of two dtypes": (
        lambda: functional.binary_cross_entropy(floats(4), floats(4, dtype=DOUBLE)),
        RuntimeError,
        "Found dtype Double but expected Float",
    ),
    "a deviation of integers": (
        lambda: numbers(3).std(),
        RuntimeError,
        "std and var only support floating point and complex dtypes",
    ),
    "an image of integers": (
        lambda: functional.interpolate(numbers(1, 1, 4, 4), scale_factor=2, mode="bilinear"),
        NotImplementedError,
        "\"upsample_bilinear2d_out_frame\" not implemented for 'Long'",
    ),
    "rows and columns that do not fit": (
        lambda: floats(2, 3) @ floats(2, 3),
        RuntimeError,
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
    ),
    "parts of two sizes": (
        lambda: torch.cat([floats(2, 3), floats(2, 4)]),
        RuntimeError,
        "Expected size 3 but got size 4 for tensor number 1 in the list.",
    ),
    "a condition of floats": (
        lambda: torch.where(floats(3), floats(3), floats(3)),
        RuntimeError,
        "where expected condition to be a boolean tensor, but got a tensor with dtype Float",
    ),
    "a convolution's channels": (
        lambda: functional.conv2d(floats(1, 3, 8, 8), floats(4, 2, 3, 3)),
        RuntimeError,
        "expected input[1, 3, 8, 8] to have 2 channels, but got 3 channels instead",
    ),
    "a convolution's groups": (
        lambda: functional.conv2d(floats(1, 4, 8, 8), floats(3, 2, 3, 3), groups=2),
        RuntimeError,
        "expected weight to be divisible by 2 at dimension 0",
    ),
    "a convolution without steps": (
        lambda: functional.conv2d(floats(1, 3, 8, 8), floats(4, 3, 3, 3), stride=0),
        RuntimeError,
        "non-positive stride is not supported",
    ),
    "values that do not fit the indices": (
        lambda: floats(4, 5).index_put_((numbers(3),), floats(2, 5)),
        RuntimeError,
        "value tensor of shape [2, 5] cannot be broadcast to indexing result of shape [3, 5]",
    ),
    "values that do not fit indices apart": (
        lambda: put(floats(4, 5, 6), (numbers(3), slice(None), numbers(3)), floats(4, 5)),
        RuntimeError,
        "value tensor of shape [4, 5] cannot be broadcast to indexing result of shape [3, 5]",
    ),
    "more indices than dimensions": (
        lambda: floats(4).index_put_((numbers(3), numbers(3)), floats(3)),
        IndexError,
        "too many indices for tensor of dimension 1 (got 2)",
    ),
    "a clamp without bounds": (
        lambda: torch.clamp(floats(3)),
        RuntimeError,
        "At least one of 'min' or 'max' must not be None",
    ),
    "a clamp of complex numbers": (
        lambda: floats(3, dtype=COMPLEX).clamp(0, 1),
        NotImplementedError,
        "clamp is not supported for complex types",
    ),
    "complex numbers in order": (
        lambda: floats(3, dtype=COMPLEX).sort(),
        *(
            (TypeError, "Sort currently does not support complex dtypes on CUDA.")
            if KERNELS_CHECK_ORDER
            else (RuntimeError, "Sort does not support complex dtypes on CPU")
        ),
    ),
    "the largest complex number": (
        lambda: floats(3, dtype=COMPLEX).max(),
        NotImplementedError,
        "\"max_all_cuda\" not implemented for 'ComplexFloat'",
    ),
    "the largest complex numbers along a dimension": (
        lambda: floats(3, 3, dtype=COMPLEX).max(0),
        RuntimeError,
        "max(): does not support complex input",
    ),
    "factors of a matrix of halves": (
        lambda: torch.linalg.lu_factor_ex(floats(3, 3, dtype=HALF)),
        NotImplementedError,
        "\"lu_factor_cusolver\" not implemented for 'Half'",
    ),
    "a system of halves": (
        lambda: torch.linalg.solve_ex(floats(3, 3, dtype=HALF), floats(3, 3, dtype=HALF)),
        NotImplementedError,
        "\"lu_factor_cusolver\" not implemented for 'Half'",
    ),
    "rounding of truths": (
        lambda: torch.ceil(numbers(3, dtype=torch.bool)),
        NotImplementedError,
        "\"ceil_cuda\" not implemented for 'Bool'",
    ),
    "a remainder of truths": (
        lambda: truths(3).fmod(truths(3)),
        NotImplementedError,
        "\"fmod_cuda\" not implemented for 'Bool'",
    ),
    "a power of truths": (
        lambda: truths(3) ** truths(3),
        NotImplementedError,
        "\"pow_cuda\" not implemented for 'Bool'",
    ),
    "the long side of whole numbers": (
        lambda: torch.hypot(numbers(3), numbers(3)),
        NotImplementedError,
        "\"hypot_cuda\" not implemented for 'Long'",
    ),
    "a rounded quotient of complex numbers": (
        lambda: torch.div(floats(3, dtype=COMPLEX), 2, rounding_mode="trunc"),
        NotImplementedError,
        "\"div_trunc_cuda\" not implemented for 'ComplexFloat'",
    ),
    "whole quotients of truths": (
        lambda: truths(3) // truths(3),
        NotImplementedError,
        "\"div_floor_cuda\" not implemented for 'Bool'",
    ),
    "a histogram of complex numbers": (
        lambda: torch.histc(floats(3, dtype=COMPLEX)),
        NotImplementedError,
        "\"histc\" not implemented for 'ComplexFloat'",
    ),
    "eigenvalues of whole numbers": (
        lambda: torch.linalg.eig(numbers(3, 3)),
        RuntimeError,
        "Unknown Complex ScalarType for Long",
    ),
    "least squares of a vector": (
        lambda: torch.linalg.lstsq(floats(3), floats(3)),
        RuntimeError,
        "torch.linalg.lstsq: input must have at least 2 dimensions.",
    ),
    "buckets of two dimensions": (
        lambda: torch.bucketize(floats(3), floats(2, 2)),
        RuntimeError,
        "boundaries tensor must be 1 dimension, but got dim(2)",
    ),
    "buckets of truths": (
        lambda: torch.bucketize(truths(3), truths(3)),
        NotImplementedError,
        "\"searchsorted_out_cuda\" not implemented for 'Bool'",
    ),
    "the largest truths": (
        lambda: truths(3).topk(1),
        *(
            (NotImplementedError, "\"topk_out_cuda\" not implemented for 'Bool'")
            if KERNELS_CHECK_ORDER
            else (RuntimeError, "topk does not support bool dtypes on CPU")
        ),
    ),
    "a mask of bytes to scatter by": (
        lambda: floats(3).masked_scatter(numbers(3, dtype=torch.uint8), floats(3)),
        RuntimeError,
        "masked_scatter_ only supports boolean masks, but got mask with dtype Byte",
    ),
    "a sum of exponentials along no dimension": (
        lambda: floats(3).logcumsumexp(1),
        IndexError,
        "Dimension out of range",
    ),
    "mish of whole numbers": (
        lambda: functional.mish(numbers(3)),
        NotImplementedError,
        "\"mish_cuda\" not implemented for 'Long'",
    ),
    "a slope of whole numbers": (
        lambda: functional.prelu(numbers(3), numbers(1)),
        NotImplementedError,
        "\"prelu_cuda\" not implemented for 'Long'",
    ),
    "a loss of complex numbers": (
        lambda: functional.mse_loss(floats(3, dtype=COMPLEX), floats(3, dtype=COMPLEX)),
        NotImplementedError,
        "\"mse_cuda\" not implemented for 'ComplexFloat'",
    ),
    "a solution in whole numbers": (
        lambda: torch.linalg.solve_triangular(numbers(3, 3), numbers(3, 3), upper=True),
        NotImplementedError,
        "\"triangular_solve_cuda\" not implemented for 'Long'",
    ),
    "shifts of floats": (
        lambda: floats(3) << 1,
        NotImplementedError,
        "\"lshift_cuda\" not implemented for 'Float'",
    ),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_refusals_have_cudas_message(refused: Refused) -> None:
    call, error, words = refused
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert words in str(raised.value)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_refuses_its_dtypes(kernel: str) -> None:
    check_refusals(kernel, torch.device("cuda", 0))


def test_supported_operands_run() -> None:
    functional.cross_entropy(floats(4, 10), numbers(4), floats(10))
    functional.cross_entropy(floats(4, 10), floats(4, 10))
    torch.mm(floats(2, 2, dtype=HALF), floats(2, 2, dtype=HALF), out_dtype=torch.float32)
    torch.addmm(
        floats(2, 2), floats(2, 2, dtype=HALF), floats(2, 2, dtype=HALF), out_dtype=torch.float32
    )
    tensor = floats(4)
    tensor[numbers(4, dtype=torch.bool)] = 1
    tensor[numbers(2)] = 1
    tensor[numbers(2, dtype=torch.int32)].index_select(0, numbers(2, dtype=torch.int32))
    put(floats(4, 5, 6), (numbers(3), slice(None), numbers(3)), floats(3, 5))
    put(floats(4, 5, 6), (slice(None), numbers(3), numbers(2, 1)), floats(4, 2, 3))
    apart = (slice(None), numbers(7), slice(None), numbers(7))
    put(floats(2, 3, 4, 5), apart, floats(7, 2, 4))
    torch.cat([floats(0), floats(2, 3), floats(1, 3)])
    floats(3, dtype=COMPLEX).cumsum(0)
    truths(3).fmod(numbers(3)).hypot(floats(3))
    truths(3) ** 2
    2 ** numbers(3, dtype=torch.int32) // 3
    torch.div(numbers(3), 2, rounding_mode="floor")
    truths(3) / truths(3)
    functional.conv_transpose2d(floats(1, 2, 5, 5), floats(2, 3, 3, 3), stride=2, output_padding=1)
    floats(4, 4).index_copy(1, numbers(2), floats(4, 2))
    floats(3).masked_scatter(truths(3), floats(3))
    torch.bucketize(floats(3), floats(2))
    with torch.autocast("cuda"):
        functional.layer_norm(floats(2, 3, dtype=HALF), (3,), floats(3), floats(3))
        functional.linear(floats(2, 2), floats(2, 2, dtype=HALF), floats(2))
