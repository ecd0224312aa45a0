"""What is printed of tensors without data."""

from __future__ import annotations

import torch


def test_tensors_of_the_host_are_printed_with_their_values() -> None:
    assert str(torch.tensor([1.0, 2.5])) == "tensor([1.0000, 2.5000])"
    assert str(torch.ones(2, 3, device="cuda:1")) == "tensor(..., size=(2, 3), device='cuda:1')"
    assert str(torch.ones((), device="cuda")) == "tensor(..., size=(), device='cuda:0')"
