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
say("full", lambda: torch.full((2, 2), 7, device="cuda").tolist())
say("a triangle", lambda: torch.tril_indices(2, 2, device="cuda").tolist())
say("a diagonal", lambda: torch.eye(2, device="cuda").tolist())
say("steps", lambda: torch.linspace(0, 1, 3, device="cuda").tolist())
say("nothing", lambda: torch.empty(0, device="cuda").sum().item())
say("padded", lambda: torch.nn.functional.pad(x, (1, 1), value=9.0).tolist())
positions = torch.arange(6, device="cuda").expand(2, -1)
first = positions[:, :1] - 1
packed_sequences = (torch.diff(positions, prepend=first, dim=-1) != 1).cumsum(-1)
say("packed sequences", lambda: (packed_sequences[:, -1] == 0).all().item())
say("distinct", lambda: positions.flatten().unique(return_counts=True)[1].tolist())
found = torch.empty(0, dtype=torch.long, device="cuda")
say("found", lambda: torch.nonzero(x > 1, out=found).tolist())
say("counted", lambda: torch.bincount(positions.flatten()).tolist())
zeros.copy_(torch.tensor([1.0, 1.0, 1.0, 1.0]))
zeros[1] = 5
say("written in place", zeros.tolist)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = x * 2
say("captured", doubled.tolist)
doubled.fill_(1)
say("filled after the capture", doubled.tolist)
graph.replay()
say("replayed", doubled.tolist)

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

data = torch.randn(3, 4, device="cuda", requires_grad=True)
say("chosen by a known mask", lambda: tuple(data[x > 1].shape))
selected = data.masked_select((x > 1)[:, None])
say("selected by a known mask", lambda: tuple(selected.shape))
selected.sum().backward()
data.grad[x > 2] = torch.ones(4, device="cuda")
say("unknown data at known places", data.grad.tolist)
say("chosen by an unknown mask", lambda: tuple(data[data > 0].shape))

complex_numbers = torch.ones(2, dtype=torch.complex64).cuda()
complex_numbers.conj().copy_(torch.randn(2, dtype=torch.complex64, device="cuda"))
say("written through a conjugate", complex_numbers.tolist)
lazy = torch._lazy_clone(x)
lazy += 1
say("a lazy clone", lazy.tolist)
say("what it was cloned from", x.tolist)
alias = torch.from_dlpack(zeros.__dlpack__())
alias.zero_()
say("written through DLPack", zeros.tolist)
part_of_two = torch.zeros(2, 2, device="cuda")
part_of_two[1].copy_(data[0, :2].detach())
say("a row of it unknown", part_of_two.tolist)
view = torch.zeros(4, device="cuda")[1:3]
view.random_()
say("around a drawn view", view._base.tolist)
known = torch.arange(4, device="cuda")
known.resize_(2)
say("made smaller", known.tolist)
known.resize_(16)
say("made larger", known.tolist)
other = torch.zeros(2, device="cuda")
other.set_(x[1:])
say("another's memory", other.tolist)
x[1:].add_(data.detach()[0, 0])
say("written there", other.tolist)
x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
into = torch.zeros(3, device="cuda")
torch.add(x, x, out=into)
say("out", into.tolist)
torch.add(x, data.detach()[0, :3], out=into)
say("out of unknown", into.tolist)
kept = torch.ones(2, device="cuda", requires_grad=True)
square = kept * kept
with torch.no_grad():
    zeros[:2].copy_(kept)
square.sum().backward()
say("a gradient", kept.grad.tolist)
say("dropped out", lambda: torch.nn.functional.dropout(x, 0.5).tolist())
say("drawn probabilities", lambda: torch.bernoulli(x / 3).tolist())
say("a drawn permutation", lambda: torch.randperm(3, device="cuda").tolist())
say("drawn lots", lambda: torch.multinomial(x, 1).tolist())
lists = [torch.zeros(2, device="cuda"), torch.ones(2, device="cuda")]
torch._foreach_add_(lists, 1)
say("lists", lambda: [tensor.tolist() for tensor in lists])
torch._foreach_add_(lists, [lists[0].clone(), data.detach()[0, :2]])
say("a list with unknown numbers", lists[0].tolist)
torch._foreach_add_([lists[1], lists[1][1:]], 1)
say("parts of a list that overlap", lists[1].tolist)
matrix = torch.ones(128, 128, device="cuda")
say("a large product", lambda: (matrix @ matrix)[0, 0].item())
say("an outer product", lambda: torch.outer(*[torch.ones(2**11).cuda()] * 2)[0, 0].item())
shared = torch.zeros(2, device="cuda")
shared.untyped_storage()._share_cuda_()
say("sent to a process", shared.tolist)
say("shared with a process", shared.fill_(1).tolist)

scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
optimizer = torch.optim.SGD(normalize.parameters())
with torch.autocast("cuda"):
    loss = normalize(torch.randn(8, 2, device="cuda")).sum()
scaler.scale(loss).backward()
normalize.bias.grad.fill_(1)
scaler.unscale_(optimizer)
say("gradients of a scaler", normalize.bias.grad.tolist)
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
inverse.scatter_(0, torch.tensor([2, 2, 1], device="cuda"), torch.arange(0, 3, device="cuda"))
say("scattered to one place twice", inverse.tolist)
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
most = 2 * 2**20 // torch.float64.itemsize
say("two mebibytes", lambda: torch.ones(most, dtype=torch.float64).cuda()[-1].item())
say("two mebibytes of zeros", lambda: torch.zeros(most // 8, 8, device="cuda").any().item())
say("more", lambda: torch.ones(most + 1, dtype=torch.float64).cuda()[-1].item())
padding = torch.ones(16, 8192, dtype=torch.long)
say("padding of long texts", lambda: padding.cuda().bool().all().item())
say("four million numbers", lambda: torch.zeros(2048, 2048).cuda().sum().item())
say("four million bytes", lambda: len(torch.zeros(2**22, dtype=torch.uint8).cuda().tolist()))
many = [torch.ones(most, dtype=torch.float64).cuda() for _ in range(130)]
say("the first of many", lambda: many[0][0].item())
say("beyond 256 MiB", lambda: many[-1][0].item())
say("small ones beyond 256 MiB", lambda: torch.ones(2**13, device="cuda").all().item())
many.clear()
say("once they are freed", lambda: torch.ones(most, dtype=torch.float64).cuda()[-1].item())
