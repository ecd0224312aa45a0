"""The attention operator that CUDA chooses, the tensors it saves and the bytes it allocates.

Expectations follow PyTorch's CUDA sources; `sdp_utils.cpp`, `attention.cu` and
`flash_api.cpp` are in aten/src/ATen/native/transformers/cuda.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CALLS = Path(__file__).parent / "attention_calls.py"

# Flash comes first in the order of the first three GPUs, cuDNN in that of the fourth.
RIGS = ("A100-80GB+T4+RTX-4090", "H100-SXM")
CARDS = {"A100": RIGS[0], "T4": RIGS[0], "RTX-4090": RIGS[0], "H100": RIGS[1]}


@functools.cache
def outcomes(rig: str, shape_only: bool) -> dict[str, Any]:
    command = [sys.executable, str(CALLS), rig, *(["--shape-only"] if shape_only else [])]
    finished = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    results: dict[str, Any] = json.loads(finished.stdout)
    return results


def outcome(card: str, call: str) -> dict[str, Any]:
    words = card.replace("-", " ").split()
    results = outcomes(CARDS[card], False)
    (found,) = (
        result
        for name, result in results.items()
        if all(word in name for word in words) and name.endswith(f": {call}")
    )
    return dict(found)


FLASH, EFFICIENT, MATH, CUDNN = (
    "FLASH_ATTENTION",
    "EFFICIENT_ATTENTION",
    "MATH",
    "CUDNN_ATTENTION",
)

# call: the choice on A100, T4, RTX 4090, H100, and why
CHOICES = {
    # check_prefer_cudnn_attention: cuDNN first on major 9 and 10; flash needs sm80
    "half": (FLASH, EFFICIENT, FLASH, CUDNN),
    # can_use_mem_efficient_attention: bfloat16 from sm80
    "bfloat16": (FLASH, MATH, FLASH, CUDNN),
    # check_dtypes_low_precision: flash and cuDNN support half precision only
    "float": (EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    "double": (MATH, MATH, MATH, MATH),
    "tokens_first": (FLASH, EFFICIENT, FLASH, CUDNN),
    "no_gradient": (FLASH, EFFICIENT, FLASH, CUDNN),
    "causal": (FLASH, EFFICIENT, FLASH, CUDNN),
    # check_flash_causal_non_square_seqlens
    "causal_not_square": (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN),
    # check_for_attn_mask
    "mask": (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN),
    "dropout": (FLASH, EFFICIENT, FLASH, CUDNN),
    # check_cudnn_dropout: sixteenths only
    "odd_dropout": (FLASH, EFFICIENT, FLASH, FLASH),
    # pad_last_dim makes 24 of 20 for flash; minimum_gemm_alignment is 8 in half precision with
    # tensor cores; check_cudnn_tensor_shapes wants multiples of 8
    "head_of_20": (FLASH, MATH, FLASH, FLASH),
    # ... 4 in float32 from sm80, 1 before
    "float_head_of_20": (EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    "float_head_of_6": (MATH, EFFICIENT, MATH, MATH),
    # check_cudnn_tensor_shapes: 128, or 192 with values of 128
    "head_of_160": (FLASH, EFFICIENT, FLASH, FLASH),
    # check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120
    "head_of_192": (FLASH, EFFICIENT, FLASH, FLASH),
    "head_of_256": (FLASH, EFFICIENT, FLASH, FLASH),
    "head_of_256_dropout": (FLASH, EFFICIENT, EFFICIENT, FLASH),
    "head_of_224": (FLASH, EFFICIENT, EFFICIENT, FLASH),
    "head_of_224_no_gradient": (FLASH, EFFICIENT, FLASH, FLASH),
    # check_head_dim_size_flash: 256
    "head_of_512": (EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    "value_of_other_head": (EFFICIENT, EFFICIENT, EFFICIENT, CUDNN),
    # check_batch_size_and_num_heads_dense: the memory-efficient operator has no groups
    "grouped_query": (FLASH, MATH, FLASH, CUDNN),
    "float_grouped_query": (MATH, MATH, MATH, MATH),
    # check_cudnn_tensor_shapes: not one key
    "one_key": (FLASH, EFFICIENT, FLASH, FLASH),
    "decoding": (FLASH, EFFICIENT, FLASH, CUDNN),
    # check_tensor_shapes
    "three_dimensions": (MATH, MATH, MATH, MATH),
    # check_last_dim_stride_equals_1_dense
    "permuted": (MATH, MATH, MATH, MATH),
    # check_data_ptr_alignment_mem_efficient: 16 bytes from sm80
    "float_shifted": (MATH, EFFICIENT, MATH, MATH),
    # check_cudnn_deterministic
    "deterministic": (FLASH, EFFICIENT, FLASH, FLASH),
    "only_math": (MATH, MATH, MATH, MATH),
    "only_efficient": (EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    "only_cudnn": (CUDNN, None, CUDNN, CUDNN),
    "efficient_or_math": (EFFICIENT, EFFICIENT, EFFICIENT, EFFICIENT),
    "only_flash_float": (None, None, None, None),
}


@pytest.mark.parametrize("call", CHOICES)
def test_the_choice(call: str) -> None:
    found = tuple(outcome(card, call).get("choice") for card in CARDS)
    assert found == CHOICES[call]


def test_no_kernel_is_left() -> None:
    refused = outcome("A100", "only_flash_float")
    assert refused["error"] == "No available kernel. Aborting execution."
    heads = [text.split(" (Triggered")[0] for text in refused["warnings"]]
    assert heads == [
        "Memory efficient kernel not used because:",
        "Memory Efficient attention has been runtime disabled.",
        "Flash attention kernel not used because:",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: "
        "float, Key dtype: float, and Value dtype: float instead.",
        "cuDNN attention kernel not used because:",
        "cuDNN attention has been runtime disabled.",
    ]
    on_old_card = " ".join(outcome("T4", "only_cudnn")["warnings"])
    assert "cuDNN MHA only supports gpu architectures in the range [sm80, sm121]" in on_old_card


DENSE = [32768, 8192, 64, 1]
TOKENS_FIRST = [32768, 64, 256, 1]
SHAPE = [2, 4, 128, 64]


def test_what_flash_saves() -> None:
    result = outcome("A100", "dropout")
    assert result["output"] == ["float16", SHAPE, DENSE, "cuda"]
    kept = result["saved"]
    assert kept["logsumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    # flash_api.cpp, mha_varlen_fwd: seed and offset are one tensor on the device
    assert kept["rng_state"] == ["uint64", [2], [1], "cuda"]
    assert kept["unused"] == ["uint64", [], [], "cuda"]
    assert kept["cum_seq_q"] == kept["cum_seq_k"] == "None"
    assert (kept["max_q"], kept["max_k"]) == ("128", "128")
    assert result["offset"] == 2 * 4 * 32  # flash_api.cpp: b * h * 32
    assert outcome("A100", "tokens_first")["output"] == ["float16", SHAPE, TOKENS_FIRST, "cuda"]


def test_what_the_efficient_operator_saves() -> None:
    result = outcome("T4", "dropout")
    assert result["output"] == ["float16", SHAPE, TOKENS_FIRST, "cuda"]
    kept = result["saved"]
    assert kept["log_sumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    # attention.cu, note "Seed and Offset Device": on the host unless a graph is captured
    assert kept["philox_seed"] == kept["philox_offset"] == ["int64", [], [], "cpu"]
    assert result["offset"] == 2 * 4 * 128 * 128  # one number for each score
    # rows up to the next multiple of 32
    assert outcome("A100", "float")["saved"]["log_sumexp"][1] == [2, 4, 128]


def test_what_cudnn_saves() -> None:
    result = outcome("H100", "dropout")
    assert result["output"] == ["float16", SHAPE, DENSE, "cuda"]
    kept = result["saved"]
    assert kept["logsumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    assert kept["philox_seed"] == kept["philox_offset"] == ["int64", [], [], "cuda"]


def test_bytes_of_flash() -> None:
    result = outcome("A100", "tokens_first")
    tensor = 2 * 4 * 128 * 64 * 2
    # The forward allocates only what it returns (output, logsumexp, rng_state, unused).
    assert result["forward"][1] == result["forward"][0]
    # flash_api.cpp, mha_bwd: three gradients, softmax_d and dq_accum, plus the incoming gradient
    scratch = 2 * 4 * 128 * 4 + 2 * 128 * 4 * 64 * 4
    incoming = tensor
    assert result["end"][1] == result["forward"][0] + incoming + 3 * tensor + scratch
    # attention_backward.cu: the kernel needs tokens before heads; other layouts are copied
    copies = outcome("A100", "half")
    assert copies["end"][1] == copies["forward"][0] + incoming + 5 * tensor + scratch


def test_bytes_of_the_efficient_operator() -> None:
    result = outcome("A100", "float")
    tensor, sums = 2 * 4 * 128 * 64 * 4, 2 * 4 * 128 * 4
    assert result["forward"][1] == result["forward"][0]
    # attention_backward.cu: gradients and delta; kernel_backward.h: two tiles of 64 by 64 numbers
    # and 16 bytes for each of 8 heads, rounded up to whole blocks of 512 bytes
    workspace = (8 * 2 * (64 * 64 + 4) * 4 + 511) // 512 * 512
    incoming = tensor
    assert result["end"][1] == result["forward"][0] + incoming + 3 * tensor + sums + workspace
    # In half precision, heads larger than 128 also keep their output in float32.
    wide = outcome("T4", "head_of_160")
    assert wide["forward"][1] == wide["forward"][0] + 2 * 4 * 128 * 160 * 4


def test_flash_decoding_splits_the_keys() -> None:
    result = outcome("A100", "decoding")
    # num_splits_heuristic: 8 blocks of queries for 2 * 108 places, 16 blocks of keys: 16 splits,
    # each with an output and a sum for each of 8 heads; logsumexp, rng_state, unused are small
    outputs, sums = 16 * 8 * 64 * 4, 16 * 8 * 4
    assert result["forward"][1] - result["forward"][0] == outputs + sums + 3 * 512
    # With heads of 128 there are 32 blocks of keys, and 16 splits again.
    result = outcome("A100", "decoding_with_heads_of_128")
    assert result["forward"][1] - result["forward"][0] == 2 * outputs + sums + 3 * 512


@pytest.mark.parametrize("rig", RIGS)
def test_both_modes_agree(rig: str) -> None:
    computed, shapes = outcomes(rig, False), outcomes(rig, True)
    assert computed == shapes
