from __future__ import annotations

import warnings

import pytest
import torch

from anyrig.transfer import pin
from anyrig.transfer.pin import is_plain_host_tensor, pinning_helps


def test_without_an_accelerator_the_tree_itself_is_returned() -> None:
    if torch.accelerator.is_available():  # asked here: virtual GPUs may have come since
        pytest.skip("there is an accelerator, real or virtual")
    tree = {"x": torch.ones(2)}
    assert pin(tree) is tree


@pytest.mark.parametrize("kind", ["cpu", "mps", "meta"])
def test_devices_that_share_or_lack_memory_do_not_profit(kind: str) -> None:
    assert not pinning_helps(kind)


def test_which_tensors_have_no_rules_of_their_own() -> None:
    x = torch.ones(2, 2)
    assert is_plain_host_tensor(x)
    assert is_plain_host_tensor(x.t())
    assert is_plain_host_tensor(torch.tensor(3))
    assert not is_plain_host_tensor(x.to_sparse())
    assert not is_plain_host_tensor(x.to("meta"))
    assert not is_plain_host_tensor(torch.nn.Parameter(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of nested tensors as a prototype
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    assert not is_plain_host_tensor(nested)
    jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert not is_plain_host_tensor(jagged)
    with torch._subclasses.FakeTensorMode():
        assert not is_plain_host_tensor(torch.ones(2))
