"""Trains and evaluates tiny models of transformers on a virtual GPU, one step each.

Prints one line for each architecture: what went wrong in each phase, or the peak of its bytes.

    python architectures.py [--compute] [--weights-from-host] [--tokens-on-gpu] [NAME ...]

More than 400 lines: one table of architectures, with the settings that make each tiny.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from anyrig.errors import ValueNeededError
from anyrig.virtual import install

BATCH, LENGTH, WORDS = 2, 12, 99
SPECIAL = 90  # this token and those after it stand for images
IMAGE, PATCH = 32, 8
Inputs = dict[str, Any]


def words(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(5, SPECIAL, (BATCH, length))


def text(length: int = LENGTH) -> Inputs:
    """Return padded sentences: the second is two words shorter than the first."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, -2:] = 0
    ids = words(length)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def plain_text() -> Inputs:
    ids = words()
    return {"input_ids": ids, "labels": ids.clone()}


def classified_text() -> Inputs:
    return {**text(), "labels": torch.tensor([0, 1])}


def image(channels: int = 3) -> torch.Tensor:
    return torch.randn(BATCH, channels, IMAGE, IMAGE)


def classified_image() -> Inputs:
    return {"pixel_values": image(), "labels": torch.tensor([0, 1])}


def captioned_image() -> Inputs:
    return {**text(), "pixel_values": image(), "labels": None, "return_loss": True}


@dataclass(frozen=True)
class Architecture:
    """One architecture: its model type, the class with its head, its sizes and its inputs."""

    model_type: str
    head: str
    sizes: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[], Inputs] = text


TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 64}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": WORDS,
    "decoder_start_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
    "num_feat_extract_layers": 3,
    "mask_time_prob": 0.2,
    "mask_time_length": 2,
}


def speech() -> Inputs:
    mask = torch.ones(BATCH, 2000, dtype=torch.long)
    mask[1, 1500:] = 0
    labels = torch.randint(1, 32, (BATCH, 6))
    labels[1, 4:] = -100
    return {"input_values": torch.randn(BATCH, 2000), "attention_mask": mask, "labels": labels}


def spectrogram() -> Inputs:
    return {"input_features": torch.randn(BATCH, 80, 60), "labels": words()}


def image_in_text(image_token: int, count: int) -> Callable[[], Inputs]:
    def make() -> Inputs:
        ids = words(count + LENGTH)
        ids[:, 1 : 1 + count] = image_token
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": image(),
            "labels": ids.clone(),
        }

    return make


def patches_in_text() -> Inputs:
    """Return inputs of Qwen2-VL: patches of 8 by 8 pixels in two frames, merged 2 by 2."""
    ids = words(4 + LENGTH)
    ids[:, 0], ids[:, 1:5], ids[:, 5] = 96, 95, 97
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(BATCH * 16, 3 * 2 * PATCH * PATCH),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        "mm_token_type_ids": (ids == 95).long(),
        "labels": ids.clone(),
    }


CAUSAL, MASKED, SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM"
SENTENCES, PICTURES = "AutoModelForSequenceClassification", "AutoModelForImageClassification"
CLIP = {
    "text_config": {**TEXT, "projection_dim": 16},
    "vision_config": {**VISION, "projection_dim": 16},
    "projection_dim": 16,
}
ARCHITECTURES = (
    Architecture("bert", MASKED, TEXT),
    Architecture("roberta", MASKED, TEXT),
    Architecture("xlm-roberta", SENTENCES, TEXT, classified_text),
    Architecture(
        "distilbert",
        SENTENCES,
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": WORDS},
        classified_text,
    ),
    Architecture("albert", MASKED, {**TEXT, "embedding_size": 16}),
    Architecture("electra", SENTENCES, {**TEXT, "embedding_size": 16}, classified_text),
    Architecture(
        "deberta-v2",
        MASKED,
        {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    Architecture("mpnet", MASKED, TEXT),
    Architecture("camembert", MASKED, TEXT),
    Architecture("modernbert", MASKED, {**TEXT, "cls_token_id": 3, "sep_token_id": 4}),
    Architecture("gpt2", CAUSAL, GPT, plain_text),
    Architecture(
        "gpt_neo",
        CAUSAL,
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
    ),
    Architecture("gpt_neox", CAUSAL, TEXT),
    Architecture("gptj", CAUSAL, {**GPT, "rotary_dim": 4}),
    Architecture(
        "opt",
        CAUSAL,
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "vocab_size": WORDS,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    Architecture(
        "bloom", CAUSAL, {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
    ),
    Architecture(
        "falcon",
        CAUSAL,
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS},
    ),
    Architecture("llama", CAUSAL, GROUPED),
    Architecture("mistral", CAUSAL, {**GROUPED, "sliding_window": 4}),
    Architecture("mixtral", CAUSAL, {**GROUPED, "num_local_experts": 4}),
    Architecture("qwen2", CAUSAL, GROUPED),
    Architecture("qwen3", CAUSAL, GROUPED),
    Architecture("qwen3_moe", CAUSAL, EXPERTS),
    Architecture("qwen2_moe", CAUSAL, {**EXPERTS, "shared_expert_intermediate_size": 32}),
    Architecture("gemma", CAUSAL, GROUPED),
    Architecture("gemma2", CAUSAL, {**GROUPED, "sliding_window": 4}),
    Architecture("gemma3_text", CAUSAL, {**GROUPED, "sliding_window": 4}),
    Architecture("phi", CAUSAL, TEXT),
    Architecture("phi3", CAUSAL, {**GROUPED, "sliding_window": 4}),
    Architecture("gpt_oss", CAUSAL, {**GROUPED, "num_local_experts": 4, "sliding_window": 4}),
    Architecture(
        "deepseek_v3",
        CAUSAL,
        {
            **TEXT,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
        },
    ),
    Architecture("cohere", CAUSAL, GROUPED),
    Architecture("granite", CAUSAL, GROUPED),
    Architecture("olmo2", CAUSAL, GROUPED),
    Architecture("smollm3", CAUSAL, GROUPED),
    Architecture("starcoder2", CAUSAL, GROUPED),
    Architecture("stablelm", CAUSAL, GROUPED),
    Architecture(
        "mamba",
        CAUSAL,
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": WORDS},
    ),
    Architecture(
        "xlnet",
        CAUSAL,
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "vocab_size": WORDS},
    ),
    Architecture("t5", SEQ2SEQ, T5),
    Architecture("mt5", SEQ2SEQ, T5),
    Architecture("bart", SEQ2SEQ, BART),
    Architecture(
        "bart",
        SENTENCES,
        BART,
        lambda: {
            "input_ids": torch.cat([words(), torch.full((BATCH, 1), 2)], 1),
            "labels": torch.tensor([0, 1]),
        },
    ),
    Architecture("mbart", SEQ2SEQ, BART),
    Architecture("marian", SEQ2SEQ, {**BART, "pad_token_id": 1, "decoder_start_token_id": 1}),
    Architecture("pegasus", SEQ2SEQ, BART),
    Architecture("m2m_100", SEQ2SEQ, BART),
    Architecture(
        "whisper",
        "WhisperForConditionalGeneration",
        {
            **BART,
            "max_source_positions": 30,
            "max_target_positions": 64,
            "num_mel_bins": 80,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
        },
        spectrogram,
    ),
    Architecture("wav2vec2", "AutoModelForCTC", SPEECH, speech),
    Architecture("hubert", "AutoModelForCTC", SPEECH, speech),
    Architecture("vit", PICTURES, VISION, classified_image),
    Architecture("deit", "DeiTForImageClassification", VISION, classified_image),
    Architecture("beit", PICTURES, VISION, classified_image),
    Architecture("dinov2", PICTURES, VISION, classified_image),
    Architecture(
        "swin",
        PICTURES,
        {
            "image_size": IMAGE,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        classified_image,
    ),
    Architecture(
        "convnext",
        PICTURES,
        {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2},
        classified_image,
    ),
    Architecture(
        "resnet",
        PICTURES,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]},
        classified_image,
    ),
    Architecture(
        "segformer",
        PICTURES,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        classified_image,
    ),
    Architecture(
        "vit_mae",
        "AutoModelForPreTraining",
        {
            **VISION,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 2,
            "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 64,
        },
        lambda: {"pixel_values": image()},
    ),
    Architecture("clip", "CLIPModel", CLIP, captioned_image),
    Architecture("siglip", "SiglipModel", CLIP, captioned_image),
    Architecture(
        "blip",
        "BlipForConditionalGeneration",
        {
            "text_config": TEXT,
            "vision_config": VISION,
            "projection_dim": 16,
        },
        lambda: {**text(), "pixel_values": image()},
    ),
    Architecture(
        "llava",
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **GROUPED},
            "vision_config": {"model_type": "clip_vision_model", **VISION, "projection_dim": 16},
            "image_token_id": 98,
        },
        image_in_text(98, 16),
    ),
    Architecture(
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": {
                **GROUPED,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [1, 1, 2],
                },
            },
            "vision_config": {
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 4,
                "patch_size": PATCH,
                "hidden_size": 32,
            },
            "image_token_id": 95,
            "vision_start_token_id": 96,
            "vision_end_token_id": 97,
            "video_token_id": 94,
        },
        patches_in_text,
    ),
    Architecture(
        "layoutlm",
        "AutoModelForTokenClassification",
        {**TEXT, "max_2d_position_embeddings": 64},
        lambda: {
            **text(),
            "bbox": torch.randint(0, 30, (BATCH, LENGTH, 4)).sort(-1).values,
            "labels": torch.randint(0, 2, (BATCH, LENGTH)),
        },
    ),
)


def make_model(architecture: Architecture) -> torch.nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(architecture.model_type, **architecture.sizes)
    head = getattr(transformers, architecture.head)
    return head.from_config(config) if architecture.head.startswith("Auto") else head(config)


def without_cache(model: torch.nn.Module) -> dict[str, bool]:
    caches = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if caches else {}


def move(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, list):
        return [move(part) for part in value]
    if isinstance(value, dict):
        return {name: move(part) for name, part in value.items()}
    return value


def outcome(phase: Callable[[], None]) -> str:
    try:
        phase()
    except ValueNeededError as error:
        return f"asks: {error}"
    except Exception as error:  # whatever else went wrong is the answer
        return f"fails: {type(error).__name__}: {error}"
    return "ok"


def run(architecture: Architecture, options: argparse.Namespace) -> str:
    """Return what became of each phase, and the peak of the GPU's bytes."""
    torch.manual_seed(0)
    made: dict[str, Any] = {}

    def build() -> None:
        with torch.device("cpu" if options.weights_from_host else "cuda"):
            made["model"] = make_model(architecture).to("cuda")
        with torch.device("cuda" if options.tokens_on_gpu else "cpu"):
            made["inputs"] = move(architecture.inputs())
        made["optimizer"] = torch.optim.AdamW(made["model"].parameters())

    def train() -> None:
        made["model"].train()
        made["model"](**made["inputs"], **without_cache(made["model"])).loss.backward()
        torch.nn.utils.clip_grad_norm_(made["model"].parameters(), 1.0)
        made["optimizer"].step()
        made["optimizer"].zero_grad()

    def evaluate() -> None:
        made["model"].eval()
        with torch.no_grad():
            made["model"](**made["inputs"])
            if architecture.head == CAUSAL:  # looks for packed sentences
                ids = made["inputs"]["input_ids"]
                made["model"](input_ids=ids, **without_cache(made["model"]))
                made["model"](input_ids=ids[:1], **without_cache(made["model"]))

    outcomes = [f"building {outcome(build)}"]
    torch.manual_seed(0)  # some models skip layers at random
    torch.cuda.reset_peak_memory_stats()
    if "optimizer" in made:
        outcomes += [f"training {outcome(train)}", f"evaluation {outcome(evaluate)}"]
    return "; ".join([*outcomes, f"{torch.cuda.max_memory_allocated()} bytes"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("--weights-from-host", action="store_true")
    parser.add_argument("--tokens-on-gpu", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    install("1xA100-80GB", shape_only=not options.compute)
    warnings.simplefilter("ignore")
    for architecture in ARCHITECTURES:
        gc.collect()  # models in cycles would count in the next model's peak
        name = f"{architecture.model_type}, {architecture.head}"
        is_language = architecture.inputs in (text, plain_text, classified_text)
        if options.names and architecture.model_type not in options.names:
            continue
        if is_language or not options.tokens_on_gpu:
            print(name, "->", run(architecture, options), flush=True)


if __name__ == "__main__":
    main()
