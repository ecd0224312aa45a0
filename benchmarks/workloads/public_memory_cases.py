"""A training run or a generation that was published as having run, or as having run out of memory.

``public_memory_cases.py MODEL --batch N --size N …``: a model of `public_models` with random
weights, for three steps. `public_memory_cases.toml` has the arguments of each case, and its source.
``--torch`` names the PyTorch of the source, since

- before 1.10, a softmax kept its input in addition to its output (tools/autograd/derivatives.yaml);
- before 2.0, ``zero_grad`` kept the gradients, and optimizers updated one tensor after the other.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
from workloads.public_models import TASKS, Inputs

STEPS = 3
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class OldSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = torch.softmax(x, -1)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, result = ctx.saved_tensors
        return torch._softmax_backward_data(gradients[0], result, -1, x.dtype)


def parse() -> argparse.Namespace:
    flags = argparse.ArgumentParser()
    flags.add_argument("model", choices=TASKS)
    flags.add_argument("--batch", type=int, required=True)
    flags.add_argument("--size", type=int, required=True, help="tokens, or pixels a side")
    flags.add_argument("--targets", type=int, help="tokens of a translation; as many otherwise")
    flags.add_argument("--weights", choices=DTYPES, default="float32")
    flags.add_argument("--autocast", choices=DTYPES)
    flags.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    flags.add_argument("--lora", action="store_true", help="train LoRA of rank 8 alone")
    flags.add_argument("--clip", action="store_true", help="clip the norm of gradients")
    flags.add_argument("--smoothing", type=float, default=0.0)
    flags.add_argument("--freeze-embeddings", action="store_true")
    flags.add_argument("--ddp", action="store_true", help="DistributedDataParallel of one rank")
    flags.add_argument("--channels-last", action="store_true")
    flags.add_argument("--generate", type=int, help="generate so many tokens instead of training")
    flags.add_argument("--cache", type=int, nargs=2, help="generate with a cache for BATCH TOKENS")
    flags.add_argument("--torch", type=lambda text: tuple(map(int, text.split("."))))
    return flags.parse_args()


def make_model(given: argparse.Namespace) -> nn.Module:
    torch.set_default_dtype(DTYPES[given.weights])
    with torch.device("cuda"):
        model = TASKS[given.model].make()
        if given.lora:
            model = add_lora(model)
    torch.set_default_dtype(torch.float32)
    if given.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if given.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if given.ddp:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model)
    return model.train()


def add_lora(model: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    wanted = {"q_proj", "v_proj", "q", "v", "query_key_value"} & names
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=[*wanted])
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def train(model: nn.Module, given: argparse.Namespace) -> None:
    task = TASKS[given.model]
    is_old = given.torch is not None and given.torch < (2, 0)
    trained = [one for one in model.parameters() if one.requires_grad]
    options = {"momentum": 0.9} if given.optimizer == "sgd" else {}
    if is_old:
        options["foreach"] = False
    optimizer = OPTIMIZERS[given.optimizer](trained, 1e-4, **options)
    scaler = torch.amp.GradScaler("cuda", enabled=given.autocast == "float16")
    dtype = DTYPES.get(given.autocast)
    for _ in range(STEPS):
        inputs = batch_of(given)
        with torch.autocast("cuda", dtype) if dtype else nullcontext():
            loss = task.loss(model, inputs, given.smoothing)
        scaler.scale(loss).backward()
        if given.clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(trained, 1.0, foreach=False if is_old else None)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not is_old)


def batch_of(given: argparse.Namespace) -> Inputs:
    sizes = (given.batch, given.size, given.targets or given.size)
    made = TASKS[given.model].inputs(*sizes)
    inputs = {name: tensor.to("cuda") for name, tensor in made.items()}
    if given.channels_last:
        inputs["x"] = inputs["x"].contiguous(memory_format=torch.channels_last)
    return inputs


@torch.no_grad()
def generate(model: nn.Module, given: argparse.Namespace) -> None:
    inputs = batch_of(given)
    if given.cache is None:
        model.eval().generate(
            **inputs, min_new_tokens=given.generate, max_new_tokens=given.generate, pad_token_id=0
        )
        return
    batch, tokens = given.cache
    heads, width = model.config.num_attention_heads, model.config.head_dim
    shape, dtype = (batch, tokens, heads, width), DTYPES[given.weights]
    caches = [
        torch.zeros(shape, dtype=dtype, device="cuda")
        for _ in range(2 * model.config.num_hidden_layers)
    ]
    model.eval()(**inputs)
    del caches


def main() -> None:
    given = parse()
    if given.torch is not None and given.torch < (1, 10):
        functional.softmax = lambda x, *_args, **_options: OldSoftmax.apply(x)
    model = make_model(given)
    if given.generate is None:
        train(model, given)
    else:
        generate(model, given)


if __name__ == "__main__":
    main()
