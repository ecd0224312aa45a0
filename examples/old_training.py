"""A training loop of 2017, which today's PyTorch refuses. `anyrig migrate` rewrites it.

anyrig check examples/old_training.py              # what is wrong, and since when
anyrig migrate --diff examples/old_training.py     # what it would become
anyrig check --select ARC2 examples/old_training.py    # what holds for CUDA alone
"""

import torch
from torch import nn
from torch.autograd import Variable

model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss(size_average=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    total = 0
    for _ in range(4):
        inputs = Variable(torch.randn(8, 4))
        labels = Variable(torch.LongTensor(8).random_(2))
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()
        total += loss.data[0]
    print("epoch %d loss %.3f" % (epoch, total / 4))

held_out = Variable(torch.randn(8, 4), volatile=True)
print("predictions", model(held_out).max(1)[1].size())
