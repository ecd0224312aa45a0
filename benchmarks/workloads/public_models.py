"""The models of `public_memory_cases`, with random weights, and their losses.

The sizes are those of the published models. Everything is made on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from workloads.residual_network import ResidualNetwork

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, its input, and its loss.

    Attributes:
        make: returns the model.
        inputs: returns a batch of so many samples, each with so many tokens or pixels a side, and
            with so many tokens of a translation.
        loss: returns the loss of a batch, given the model, the batch and the label smoothing.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int, int], Inputs]
    loss: Callable[[nn.Module, Inputs, float], Tensor]


def words(batch: int, tokens: int, _targets: int) -> Inputs:
    ids = torch.ones(batch, tokens, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def unmasked_words(batch: int, tokens: int, _targets: int) -> Inputs:
    return {"input_ids": torch.ones(batch, tokens, dtype=torch.long)}


def pairs_of_texts(batch: int, tokens: int, targets: int) -> Inputs:
    labels = torch.ones(batch, targets, dtype=torch.long)
    return {**words(batch, tokens, targets), "labels": labels}


def images(batch: int, side: int, _targets: int) -> Inputs:
    return {"x": torch.zeros(batch, 3, side, side), "y": torch.zeros(batch, dtype=torch.long)}


def captioned_images(batch: int, side: int, _targets: int) -> Inputs:
    return {
        "input_ids": torch.ones(batch, 77, dtype=torch.long),
        "pixel_values": torch.zeros(batch, 3, side, side),
    }


def next_word_loss(model: nn.Module, inputs: Inputs, _smoothing: float) -> Tensor:
    """Return the loss of each next word, from a copy of the logits, as transformers did."""
    logits = model(**inputs, use_cache=False).logits[:, :-1].contiguous()
    return functional.cross_entropy(logits.flatten(0, 1), inputs["input_ids"][:, 1:].flatten())


def word_loss(model: nn.Module, inputs: Inputs, _smoothing: float) -> Tensor:
    """Return the loss if each output has its target at the same place."""
    logits = model(**inputs).logits
    return functional.cross_entropy(logits.flatten(0, 1), inputs["input_ids"].flatten())


def translation_loss(model: nn.Module, inputs: Inputs, smoothing: float) -> Tensor:
    """Return the model's loss, or with label smoothing the one that transformers' script had."""
    if not smoothing:
        return model(**inputs).loss
    labels = inputs["labels"]
    logits = model(**{**inputs, "labels": None}, decoder_input_ids=labels, use_cache=False).logits
    logs = functional.log_softmax(logits, -1)
    likelihood = -logs.gather(-1, labels.unsqueeze(-1)).sum()
    return (1 - smoothing) * likelihood - smoothing * logs.sum(-1, keepdim=True).sum()


def span_loss(model: nn.Module, inputs: Inputs, _smoothing: float) -> Tensor:
    start = torch.zeros(len(inputs["input_ids"]), dtype=torch.long, device="cuda")
    return model(**inputs, start_positions=start, end_positions=start).loss


def class_loss(model: nn.Module, inputs: Inputs, smoothing: float) -> Tensor:
    return functional.cross_entropy(model(inputs["x"]), inputs["y"], label_smoothing=smoothing)


def contrast_loss(model: nn.Module, inputs: Inputs, _smoothing: float) -> Tensor:
    """Return SimCLR's loss of two views of each image."""
    views = [functional.normalize(model(inputs["x"]), dim=-1) for _ in range(2)]
    both = torch.cat(views)
    alike = torch.exp(both @ both.t() / 0.5)
    others = torch.ones_like(alike) - torch.eye(len(both), device=alike.device)
    rest = alike.masked_select(others.bool()).view(len(both), -1).sum(-1)
    matching = torch.exp(torch.sum(views[0] * views[1], -1) / 0.5)
    return (-torch.log(torch.cat([matching, matching]) / rest)).mean()


def captions_loss(model: nn.Module, inputs: Inputs, _smoothing: float) -> Tensor:
    return model(**inputs, return_loss=True).loss


def _of(name: str, attention: str = "sdpa", **sizes: Any) -> Callable[[], nn.Module]:
    family = name.removesuffix("LMHeadModel").partition("For")[0].removesuffix("Model")
    config = getattr(transformers, f"{family}Config")
    return lambda: getattr(transformers, name)(config(**sizes, attn_implementation=attention))


def _simclr() -> nn.Module:
    head = (nn.Linear(2048, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(True))
    body = [*ResidualNetwork(is_small=True)][:-1]
    return nn.Sequential(*body, *head, nn.Linear(512, 128))


def _llama(hidden: int, layers: int, heads: int, wide: int, **other: Any) -> Task:
    make = _of(
        "LlamaForCausalLM",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=wide,
        **other,
    )
    return Task(make, unmasked_words, next_word_loss)


def _t5(name: str, hidden: int, layers: int, heads: int, wide: int, **other: Any) -> Task:
    sizes = {"d_model": hidden, "num_layers": layers, "num_heads": heads, "d_ff": wide, "d_kv": 64}
    model = f"{name}ForConditionalGeneration"
    make = _of(model, "eager", decoder_start_token_id=0, **sizes, **other)
    return Task(make, pairs_of_texts, translation_loss)


def _gated_t5(name: str, hidden: int, heads: int, wide: int, **other: Any) -> Task:
    """Return a T5 of version 1.1, with a head of its own, which transformers 5 does not give it."""
    gated = {"feed_forward_proj": "gated-gelu"}
    task = _t5(name, hidden, 24, heads, wide, **gated, **other)

    def make() -> nn.Module:
        model = task.make()
        model.lm_head = nn.Linear(hidden, model.config.vocab_size, bias=False)
        return model

    return Task(make, task.inputs, task.loss)


def _bert_large() -> dict[str, int]:
    return {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }


NEO = {"hidden_size": 768, "num_layers": 12, "num_heads": 12}
NEO_KINDS = [[["global", "local"], 6]]
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
NANO = {"vocab_size": 50304, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
STABLE = {
    "hidden_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "intermediate_size": 16384,
    "vocab_size": 50688,
    "max_position_embeddings": 4096,
}
BLOOM = {"hidden_size": 4096, "n_layer": 30, "n_head": 32, "vocab_size": 250880}
OPT = {
    "hidden_size": 4096,
    "word_embed_proj_dim": 4096,
    "ffn_dim": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
CLIP = {"vision_config": {"patch_size": 16}, "projection_dim": 512}

TASKS = {
    "gpt2": Task(_of("GPT2LMHeadModel", "eager"), unmasked_words, next_word_loss),
    "nanogpt": Task(_of("GPT2LMHeadModel", **NANO), unmasked_words, word_loss),
    "gpt-neo-125m": Task(
        _of("GPTNeoForCausalLM", "eager", **NEO, attention_types=NEO_KINDS), words, next_word_loss
    ),
    "bert-base": Task(_of("BertForQuestionAnswering", "eager"), words, span_loss),
    "bert-large": Task(_of("BertForQuestionAnswering", "eager", **_bert_large()), words, span_loss),
    "roberta-base": Task(_of("RobertaForMaskedLM", "eager", **ROBERTA), words, word_loss),
    "t5-large": _t5("T5", 1024, 24, 16, 4096),
    "t0-3b": _gated_t5("T5", 2048, 32, 5120),
    "mt0-xxl": _gated_t5("MT5", 4096, 64, 10240, vocab_size=250112),
    "bloomz-7b1": Task(_of("BloomForCausalLM", "eager", **BLOOM), words, next_word_loss),
    "phi-1.5": Task(_of("PhiForCausalLM"), unmasked_words, next_word_loss),
    "stablelm-alpha-3b": Task(_of("GPTNeoXForCausalLM", **STABLE), unmasked_words, next_word_loss),
    "llama-7b": _llama(4096, 32, 32, 11008),
    "llama-13b": _llama(5120, 40, 40, 13824),
    "codellama-34b": _llama(8192, 48, 64, 22016, num_key_value_heads=8),
    "opt-6.7b": Task(_of("OPTForCausalLM", "eager", **OPT), words, next_word_loss),
    "clip-vit-b-16": Task(_of("CLIPModel", **CLIP), captioned_images, captions_loss),
    "resnet-50": Task(ResidualNetwork, images, class_loss),
    "resnet-101": Task(lambda: ResidualNetwork(blocks=(3, 4, 23, 3)), images, class_loss),
    "resnet-152": Task(lambda: ResidualNetwork(blocks=(3, 8, 36, 3)), images, class_loss),
    "resnext-101": Task(
        lambda: ResidualNetwork(blocks=(3, 4, 23, 3), groups=32), images, class_loss
    ),
    "se-resnext-101": Task(
        lambda: ResidualNetwork(blocks=(3, 4, 23, 3), groups=32, excites=True), images, class_loss
    ),
    "simclr": Task(_simclr, images, contrast_loss),
}
