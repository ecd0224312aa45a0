"""Take one step of fine-tuning with a model as large as Qwen3.5, and print its peak of memory.

``python fine_tuning.py '{"size": "0.8B", "length": 128, …}'`` prints the number of trained
parameters and the peak of `torch.cuda.max_memory_allocated` in a step, in bytes. The weights
are random. As in the public measurements, the outputs of the model, with their logits, are alive
until the end of the step.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCABULARY = 248320
WIDTHS = {
    "0.8B": {"hidden_size": 1024, "intermediate_size": 3584},
    "2B": {"hidden_size": 2048, "intermediate_size": 6144},
}


def make_model(size: str, *, is_lora: bool, recomputes: bool) -> nn.Module:
    config = Qwen3_5TextConfig(
        **WIDTHS[size],
        vocab_size=VOCABULARY,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model: Any = Qwen3_5ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if is_lora:
        lora = LoraConfig(r=8, lora_alpha=16, task_type="CAUSAL_LM", target_modules="all-linear")
        model = get_peft_model(model, lora)
    if recomputes:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if is_lora:
            model.enable_input_require_grads()
    return model.train().to("cuda")


def make_batch(length: int) -> dict[str, torch.Tensor]:
    words = torch.randint(100, VOCABULARY, (1, length))
    targets = words.clone()
    targets[:, : length // 2] = -100  # the instruction
    positions = torch.arange(length).expand(3, 1, length).clone()
    batch = {"input_ids": words, "labels": targets, "position_ids": positions}
    return {name: tensor.cuda() for name, tensor in batch.items()}


def train(size: str, length: int, *, is_lora: bool, recomputes: bool, parts: int) -> dict[str, int]:
    model = make_model(size, is_lora=is_lora, recomputes=recomputes)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batches = [make_batch(length) for _ in range(parts)]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=False)
    torch.cuda.reset_peak_memory_stats()
    for index, batch in enumerate(batches, 1):
        outputs = model(**batch, use_cache=False)
        loss = outputs.loss / parts
        loss.backward()
        if index < parts:
            del outputs, loss
    optimizer.step()
    count = sum(parameter.numel() for parameter in trained)
    return {"trained": count, "peak_bytes": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    print(json.dumps(train(**json.loads(sys.argv[1]))))
