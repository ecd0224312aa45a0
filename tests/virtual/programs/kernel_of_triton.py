"""A Triton kernel of a program."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, size, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < size
    sums = tl.load(x + places, mask=inside) + tl.load(y + places, mask=inside)
    tl.store(out + places, sums, mask=inside)


x, y = torch.randn(2, 1000, device="cuda:1")
out = torch.full((1024,), -1.0, device="cuda:1")
add[(4,)](x, y, out, 1000, block=256)
torch.testing.assert_close(out[:1000], x + y)
assert (out[1000:] == -1).all()
print("added")
