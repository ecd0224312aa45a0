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
