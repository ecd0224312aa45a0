"""Prints which values shape-only mode knows, and which it does not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anyrig.errors import ValueNeededError
from anyrig.virtual import install

install("1xA100-80GB", shape_only=True)


def say(name: str, ask: Callable[[], object]) -> None:
    try:
        print(name, "->", ask())
    except ValueNeededError as error:
        print(name, "->", type(error).__name__)


x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
say("from the host", x.tolist)
say("arithmetic", lambda: (x * 2 + 1).tolist())
say("a sum", lambda: x.sum().item())
say("a mask", lambda: x[x > 1.5].tolist())
say("nonzero", lambda: (x - 2).nonzero().tolist())
say("equal", lambda: torch.equal(x, x.clone()))
say("a view", lambda: x[1:].tolist())
say("chosen columns", lambda: torch.eye(3).cuda()[:, torch.tensor([0, 2]).cuda()].tolist())
say("half", lambda: (x.half() / 2).tolist())

counter = torch.zeros(1, device="cuda")
counter += 1
say("a counter", counter.item)
counter += torch.randn(1, device="cuda")
say("mixed with unknown", counter.item)
counter.fill_(3)
say("filled anew", counter.item)
say("drawn", lambda: counter.normal_().item())
zeros = torch.zeros(4, device="cuda")
say("many zeros", zeros.tolist)
zeros.copy_(torch.tensor([1.0, 1.0, 1.0, 1.0]))
zeros[1] = 5
say("written in place", zeros.tolist)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = x * 2
say("captured", doubled.tolist)

pieces = torch.empty(4, device="cuda")
pieces[:2].copy_(torch.tensor([1.0, 2.0]))
say("half of it written", pieces.tolist)
say("the written half", pieces[:2].tolist)
pieces[2:].copy_(torch.tensor([3.0, 4.0]))
say("both halves written", pieces.tolist)
pieces[:1].copy_(torch.randn(1, device="cuda"))
say("a part overwritten", pieces.tolist)

normalize = torch.nn.BatchNorm1d(2).cuda()
say("running mean", normalize.running_mean.tolist)
normalize(torch.randn(8, 2, device="cuda"))
say("running mean after a batch", normalize.running_mean.tolist)
say("batches", normalize.num_batches_tracked.item)

scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
optimizer = torch.optim.SGD(normalize.parameters())
with torch.autocast("cuda"):
    loss = normalize(torch.randn(8, 2, device="cuda")).sum()
scaler.scale(loss).backward()
say("a scaler's step", lambda: scaler.step(optimizer))
scaler.update()
say("a scaler's scale", scaler.get_scale)

places = torch.tensor([2, 0, 1], device="cuda")
inverse = torch.empty_like(places)
inverse.scatter_(0, places, torch.arange(0, 3, device="cuda"))
say("a permutation inverted", inverse.tolist)
inverse = torch.randn(3, device="cuda").long()
inverse.scatter_(0, places[:2], torch.arange(0, 2, device="cuda"))
say("not all of it scattered to", inverse.tolist)
inverse.scatter_(0, places, torch.randn(3, device="cuda").long())
say("unknown numbers scattered", inverse.tolist)
say("a range", torch.arange(7, 2, -2.0, device="cuda").tolist)
say("a range into known numbers", torch.arange(5, 8, out=x.long()).tolist)
say("a long range", lambda: torch.arange(10**9, device="cuda")[:2].tolist())

padded = torch.randn(3, 5, 4, device="cuda")
packed = torch.nn.utils.rnn.pack_padded_sequence(
    padded, torch.tensor([2, 5, 3]), batch_first=True, enforce_sorted=False
)
output, (hidden, _) = torch.nn.LSTM(4, 6).cuda()(packed)
unpacked, lengths = torch.nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
(unpacked.sum() + hidden.sum()).backward()
say("lengths of sequences in any order", lambda: (tuple(unpacked.shape), lengths.tolist()))

state = torch.cuda.get_rng_state()
say("generator's state there and back", lambda: torch.equal(state.cuda().cpu(), state))
mebibyte = 2**20 // torch.float64.itemsize
say("a mebibyte", lambda: torch.ones(mebibyte, dtype=torch.float64).cuda()[-1].item())
say("more", lambda: torch.ones(mebibyte + 1, dtype=torch.float64).cuda()[-1].item())
say("four million numbers", lambda: torch.zeros(2048, 2048).cuda().sum().item())
say("four million bytes", lambda: len(torch.zeros(2**22, dtype=torch.uint8).cuda().tolist()))
