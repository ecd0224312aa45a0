"""One model over two GPUs: by hand, as in PyTorch's tutorial, and as a pipeline of one line.

    anyrig rehearse --rig 2xT4 examples/model_parallel.py    # needs two GPUs: these are virtual

By hand, one GPU waits while the other computes. The pipeline cuts each batch into micro-batches, so
that both compute. Both print the same loss.
"""

import copy

import torch
from torch import nn

import anyrig


def layers() -> list[nn.Module]:
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)]
    return [*blocks, nn.Linear(64, 10)]


class ByHand(nn.Module):
    """The first half on one device, the second half on another."""

    def __init__(self, blocks: list[nn.Module], first: torch.device, second: torch.device) -> None:
        super().__init__()
        half = len(blocks) // 2
        self.first, self.second = first, second
        self.front = nn.Sequential(*blocks[:half]).to(first)
        self.back = nn.Sequential(*blocks[half:]).to(second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.front(x.to(self.first)).to(self.second))


def main() -> None:
    rig = anyrig.Rig.detect()
    if len(rig) < 2:
        raise SystemExit(
            f"this machine has {rig}, and the model needs two devices; try\n"
            "    anyrig rehearse --rig 2xT4 examples/model_parallel.py"
        )
    torch.manual_seed(0)
    blocks = layers()
    x, y = torch.randn(64, 64), torch.randint(10, (64,))

    by_hand = ByHand(copy.deepcopy(blocks), *(device.torch_device for device in tuple(rig)[:2]))
    output = by_hand(x)
    loss = nn.functional.cross_entropy(output, y.to(output.device))
    loss.backward()
    print(f"by hand: loss {loss.item():.6f}")

    pipeline = anyrig.spread(
        nn.Sequential(*blocks), rig, plan=anyrig.Pipeline(), loss=nn.CrossEntropyLoss()
    )
    loss = pipeline(x, target=y)
    loss.backward()
    print(f"pipeline: loss {loss.item():.6f}")
    print(anyrig.explain(pipeline))


if __name__ == "__main__":
    main()
