"""Replays a captured training step on a virtual GPU; prints its time and statistics."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from anyrig.virtual import install

install("1xA100-80GB", shape_only=sys.argv[1] == "shape-only")

model = nn.Sequential(nn.Linear(256, 512), nn.Dropout(), nn.Linear(512, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(64, 256, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
generator = torch.cuda.default_generators[0]
offset = generator.get_offset()
torch.cuda.synchronize()
start.record()
graph.replay()
end.record()
end.synchronize()
counted = {name: n for name, n in torch.cuda.memory_stats().items() if "bytes" in name}
print(
    json.dumps(
        {
            "milliseconds": start.elapsed_time(end),
            "drawn": generator.get_offset() - offset,
            "counted": counted,
        }
    )
)
