"""The default tensor type."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")


@pytest.fixture(autouse=True)
def _leave_the_default() -> Iterator[None]:
    yield
    torch.set_default_tensor_type("torch.FloatTensor")


def test_the_default_type_is_that_of_tensors_of_no_class() -> None:
    torch.set_default_tensor_type("torch.cuda.HalfTensor")

    by_size, by_values, empty = torch.Tensor(2, 3), torch.Tensor([1, 2]), torch.Tensor()

    assert by_size.shape == (2, 3)
    assert by_values.tolist() == [1.0, 2.0]
    assert empty.shape == (0,)
    for tensor in (by_size, by_values, empty, torch.nn.Parameter(torch.Tensor(4))):
        assert tensor.is_cuda
        assert tensor.dtype == torch.float16


def test_the_default_type_goes_back_to_the_cpu() -> None:
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    torch.set_default_tensor_type(torch.DoubleTensor)

    tensor = torch.Tensor(2, 3)

    assert tensor.is_cpu
    assert tensor.dtype == torch.float64


@pytest.mark.filterwarnings("ignore:The torch.cuda.*DtypeTensor constructors")
def test_every_old_type_makes_tensors_of_its_dtype() -> None:
    dtypes = {
        "Float": torch.float32,
        "Double": torch.float64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Byte": torch.uint8,
        "Char": torch.int8,
        "Short": torch.int16,
        "Int": torch.int32,
        "Long": torch.int64,
        "Bool": torch.bool,
    }
    for name, dtype in dtypes.items():
        kind = getattr(torch.cuda, f"{name}Tensor")
        tensor = kind(2)
        assert (tensor.dtype, tensor.shape, tensor.is_cuda) == (dtype, (2,), True)
        assert (kind.is_cuda, kind.is_sparse) == (True, False)
        assert not isinstance(tensor.cpu(), kind)
        assert not isinstance(tensor.to_sparse(), kind)
        sparse = getattr(torch.cuda.sparse, f"{name}Tensor", None)
        if sparse is not None:
            assert (sparse.dtype, sparse.is_sparse) == (dtype, True)
            assert isinstance(tensor.to_sparse(), sparse)
            assert not isinstance(tensor, sparse)


def test_classes_of_their_own_are_made_as_ever_while_the_default_is_on_a_gpu() -> None:
    class Own(torch.Tensor):
        pass

    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    assert torch.get_default_dtype() == torch.float64
    assert torch.zeros(1).device == torch.device("cuda", 0)
    assert Own([1.0, 2.0]).tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
        torch.Tensor(2, 3, device="cpu")
    torch.set_default_tensor_type("torch.FloatTensor")
    assert "__new__" not in vars(torch.Tensor)
    assert torch.zeros(1).is_cpu
