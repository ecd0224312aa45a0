"""ResNet-50 in mixed precision, with a gradient scaler, on batches of 64 images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = convolution(inputs, width, 1)
        self.middle = convolution(width, width, 3, stride)
        self.widen = convolution(width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.middle(functional.relu(self.narrow(x))))
        return functional.relu(self.widen(y) + self.shortcut(x))


def resnet50() -> nn.Sequential:
    """Return a network: images of shape (samples, 3, 224, 224) to scores of 1,000 classes."""
    stages: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            stages.append(Bottleneck(inputs, width, 2 if number == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


model = resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler()
images, labels = torch.zeros(64, 3, 224, 224), torch.zeros(64, dtype=torch.long)
samples = TensorDataset(images.repeat(4, 1, 1, 1), labels.repeat(4))

for x, y in DataLoader(samples, batch_size=64):
    with torch.autocast("cuda", torch.float16):
        loss = functional.cross_entropy(model(x.cuda()), y.cuda())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")
