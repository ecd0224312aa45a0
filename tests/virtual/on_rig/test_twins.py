"""Host tensors that stand for virtual ones in a kernel: each serves many tensors, one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

DEVICE = "cuda:1"

# From numbers of the host to a tensor of another form: dtype, geometry, offset, and flags.
FORMS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.clone(),
    lambda x: x.clone().t(),
    lambda x: x.clone()[1:, ::2],
    lambda x: x[0].clone().expand(3, -1),
    lambda x: x[0, 0].clone(),
    lambda x: x[:0].clone(),
    lambda x: x.clone().view(2, 2, 1, 2, 2),
    lambda x: x.double(),
    lambda x: x.to(torch.bfloat16),
    lambda x: (10 * x).long(),
    lambda x: x > 0,
    lambda x: torch.complex(x, x).conj(),
    lambda x: torch.complex(x, x).conj().imag,
)


def on_device(numbers: Tensor, form: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the form of `numbers` on the virtual GPU, where it gets its geometry and flags."""
    return form(numbers.to(DEVICE))


def read(x: Tensor) -> tuple[Tensor, ...]:
    """Return what several kernels compute, of which one reads a flag instead of the values."""
    doubled, summed = x + x, x.sum()
    product = x @ x.mT if x.dim() == 2 and (x.is_floating_point() or x.is_complex()) else x
    return doubled, summed, product.resolve_conj()


def test_a_twin_takes_the_form_of_the_tensor_that_it_serves() -> None:
    draw = random.Random(0)
    numbers = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    kept: list[tuple[Tensor, Tensor]] = []
    for _ in range(200):
        form = draw.choice(FORMS)
        kept.append((form(numbers), on_device(numbers, form)))
        host, device = draw.choice(kept)
        for expected, actual in zip(read(host), read(device), strict=True):
            assert actual.dtype == expected.dtype
            assert actual.stride() == expected.stride()
            torch.testing.assert_close(actual.cpu(), expected)
        if len(kept) > 8:
            kept.pop(draw.randrange(len(kept)))


def test_a_tensor_and_its_views_take_turns() -> None:
    x = torch.arange(12.0).view(3, 4)
    y = x.to(DEVICE)
    for view in (Tensor.t, lambda t: t[1:, 1:], lambda t: t.view(torch.int32), lambda t: t):
        assert (view(y) + 0).cpu().equal(view(x) + 0)


def test_a_twin_that_its_kernel_has_resized_serves_other_tensors() -> None:
    for size in (3, 1000, 2):
        out = torch.empty(0, device=DEVICE)
        torch.add(torch.ones(size, device=DEVICE), 1, out=out)
        assert out.cpu().equal(torch.full((size,), 2.0))
        del out
        fresh = torch.full((5,), 7.0, device=DEVICE)
        assert (fresh * 2).cpu().equal(torch.full((5,), 14.0))


def test_a_tensor_in_another_order_is_not_the_same() -> None:
    numbers = torch.arange(4.0, device=DEVICE).view(2, 2)
    assert torch.equal(numbers, numbers.view(2, 2))
    assert not torch.equal(numbers, numbers.t())
