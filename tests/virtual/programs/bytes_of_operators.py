"""Prints the layouts and the bytes of single calls, in the mode that the argument names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from anyrig.virtual import install

install("1xA100-80GB", shape_only=sys.argv[1] == "shape-only")

LAST = torch.channels_last
image = torch.randn(2, 8, 6, 6).cuda()
volume = torch.randn(2, 8, 4, 4, 4).cuda()
weight = torch.randn(16, 8, 3, 3).cuda()
scores = torch.randn(4, 5).cuda()
labels = torch.tensor([0, 1, 2, 3]).cuda()
batches = torch.nn.BatchNorm2d(8).cuda().eval()
bags = torch.nn.EmbeddingBag(10, 3, mode="sum").cuda()
experts = torch.randn(2, 16, 24).cuda()
ends = torch.tensor([2, 6], dtype=torch.int32).cuda()
flipped = torch.randn(5, 4).cuda().t()


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=LAST if x.dim() == 4 else torch.channels_last_3d)


CALLS: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "convolution": (functional.conv2d, (image, weight)),
    "convolution, channels last": (functional.conv2d, (last(image), weight)),
    "convolution, weight channels last": (functional.conv2d, (image, last(weight))),
    "convolution in groups": (
        lambda x, w: functional.conv2d(x, w, groups=8),
        (last(image), weight[:, :1]),
    ),
    "transposed convolution": (functional.conv_transpose2d, (last(image), weight[:8, :4])),
    "transposed convolution of volumes": (
        functional.conv_transpose3d,
        (last(volume), torch.randn(8, 3, 2, 2, 2).cuda()),
    ),
    "convolution in float64": (functional.conv2d, (last(image).double(), weight.double())),
    "reflection": (lambda x: functional.pad(x, (1, 1, 1, 1), "reflect"), (last(image),)),
    "replication": (lambda x: functional.pad(x, (1, 1, 1, 1), "replicate"), (last(image),)),
    "softmax": (lambda x: functional.log_softmax(x, 1), (last(image),)),
    "sum without nan": (torch.nansum, (last(image),)),
    "batch norm in evaluation": (batches, (last(image),)),
    "bags": (bags, (labels.reshape(2, 2),)),
    "running maximum": (lambda x: torch.cummax(x, 1), (scores,)),
    "running sum of exponentials": (lambda x: torch.logcumsumexp(x, 1), (scores,)),
    "margins": (lambda x: functional.multi_margin_loss(x, labels), (scores,)),
    "a product of groups": (torch._grouped_mm, (torch.randn(6, 16).cuda(), experts, ends)),
    "a product of groups in bfloat16": (
        torch._grouped_mm,
        (torch.randn(6, 16).cuda().bfloat16(), experts.bfloat16(), ends),
    ),
    "an index after a slice": (lambda x: x[:, torch.tensor([0, 2]).cuda()], (scores,)),
    "an absolute value of what is transposed": (torch.abs, (flipped,)),
    "a gate over what is transposed": (lambda x: functional.glu(x, 0), (flipped,)),
    "a mean square": (functional.mse_loss, (flipped, flipped)),
    "a batch norm of what is transposed": (
        torch.nn.BatchNorm1d(4).cuda(),
        (torch.stack([flipped.t(), flipped.t()]).transpose(1, 2),),
    ),
    "a gradient that is zero": (torch.sgn, (flipped,)),
}


def count() -> tuple[int, int]:
    stats = torch.cuda.memory_stats()
    return stats["allocated_bytes.all.allocated"], stats["allocation.all.allocated"]


def layouts(tensors: object) -> list[tuple[list[int], list[int]]]:
    leaves = (x for x in tree_leaves(tensors) if isinstance(x, torch.Tensor))
    return [(list(x.shape), list(x.stride())) for x in leaves]


def call(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> object:
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    before = count()
    results = function(*leaves)
    between = count()
    roots = [x for x in tree_leaves(results) if x.requires_grad]
    torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
    gradients = [x.grad for x in leaves if x.grad is not None]
    return {
        "results": layouts(results),
        "gradients": layouts(gradients),
        "forward": [now - then for now, then in zip(between, before, strict=True)],
        "backward": [now - then for now, then in zip(count(), between, strict=True)],
    }


print(json.dumps({name: call(*how) for name, how in CALLS.items()}))
