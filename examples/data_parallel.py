"""PyTorch's tutorial of nn.DataParallel, with one line changed: every GPU gets a part of the batch.

    python examples/data_parallel.py                        # all GPUs of this machine, else the CPU
    anyrig rehearse --rig 2xT4 examples/data_parallel.py    # two virtual GPUs
    anyrig rehearse --rig 2xT4 --report page.html examples/data_parallel.py    # where the time goes

The devices may be unequal, and the last batch may be shorter than the number of devices.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig

INPUTS, OUTPUTS, SAMPLES, BATCH = 5, 2, 100, 30


class Model(nn.Module):
    """The tutorial's model, which prints the part of the batch that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.fc(x)
        print(f"\tin model on {x.device}: input {tuple(x.shape)}, output {tuple(output.shape)}")
        return output


def main() -> None:
    torch.manual_seed(0)
    rig = anyrig.Rig.detect()
    print(f"devices: {rig}")
    # model = nn.DataParallel(model)
    model = anyrig.DataParallel(Model().to(rig.lead.torch_device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(SAMPLES, INPUTS), torch.randn(SAMPLES, OUTPUTS))
    for x, y in DataLoader(data, BATCH, shuffle=True):
        output = model(x.to(rig.lead.torch_device))
        loss = nn.functional.mse_loss(output, y.to(output.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"outside: input {tuple(x.shape)}, output {tuple(output.shape)}")


if __name__ == "__main__":
    main()
