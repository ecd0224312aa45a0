"""The training run of Hugging Face's "Model training anatomy" and "performance" pages, shape-only.

BERT-large, sequences of 512 tokens, float32, AdamW of transformers 4 (one tensor at a time) and a
gradient norm of at most 1, on a V100 of 16 GB. Arguments: the samples of a micro-batch, the
micro-batches of a step, and "recompute" for gradient checkpointing. Prints what nvidia-smi would
show, in MiB.

The pages are of 2021. Until PyTorch 1.10, a softmax kept its input for the backward pass, too, not
just its output (tools/autograd/derivatives.yaml), and `zero_grad` kept the gradients.
"""

from __future__ import annotations

import sys
from typing import Any

from anyrig.virtual import install

install("V100-16GB", shape_only=True, assume_values=True, without_kernels=True)

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

softmax = torch.softmax


class SoftmaxOf1_10(torch.autograd.Function):  # noqa: N801
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = softmax(x, -1)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        x, result = ctx.saved_tensors
        return torch._softmax_backward_data(gradients[0], result, -1, x.dtype)


functional.softmax = lambda x, *_args, **_options: SoftmaxOf1_10.apply(x)

samples, micro_batches = map(int, sys.argv[1:3])
torch.ones((1, 1)).to("cuda")
print("started", torch.cuda.device_memory_used() // 2**20)
model = BertForSequenceClassification(
    BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
).to("cuda")
print("loaded", torch.cuda.device_memory_used() // 2**20)
if "recompute" in sys.argv:
    model.gradient_checkpointing_enable()
parameters = list(model.parameters())
means: dict[torch.nn.Parameter, torch.Tensor] = {}
squares: dict[torch.nn.Parameter, torch.Tensor] = {}


@torch.no_grad()
def update(parameter: torch.nn.Parameter) -> None:
    gradient = parameter.grad
    assert gradient is not None
    if parameter not in means:
        means[parameter] = torch.zeros_like(parameter)
        squares[parameter] = torch.zeros_like(parameter)
    mean, square = means[parameter], squares[parameter]
    mean.mul_(0.9).add_(gradient, alpha=0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    parameter.addcdiv_(mean, square.sqrt().add_(1e-6), value=-5e-5)


for _ in range(3):
    for _ in range(micro_batches):
        ids = torch.randint(100, 30_000, (samples, 512)).cuda()
        mask = torch.ones(samples, 512, dtype=torch.long).cuda()
        labels = torch.zeros(samples, dtype=torch.long).cuda()
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss / micro_batches
        loss.backward()
    gradients = [parameter.grad for parameter in parameters]
    norm = torch.norm(torch.stack([torch.norm(gradient) for gradient in gradients]))
    for gradient in gradients:
        gradient.mul_(torch.clamp(1 / (norm + 1e-6), max=1.0))
    del gradients, gradient
    for parameter in parameters:
        update(parameter)
    model.zero_grad(set_to_none=False)
print("trained", torch.cuda.device_memory_used() // 2**20)
