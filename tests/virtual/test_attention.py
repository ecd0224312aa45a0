"""The attention operator that each GPU chooses, what it saves and the memory it uses.

The expected values are derived from PyTorch's CUDA sources: `sdp_utils.cpp`, `attention.cu` and
`flash_api.cpp` in aten/src/ATen/native/transformers/cuda.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from forked_programs import run_forked

CALLS = Path(__file__).parent / "attention_calls.py"

# The first call of a process sets the order: flash comes first on the A100, cuDNN on the H100.
RIGS = ("A100-80GB+T4+RTX-4090+V100-32GB", "H100-SXM")
RIG_OF_GPU = {"A100": RIGS[0], "T4": RIGS[0], "RTX-4090": RIGS[0], "H100": RIGS[1], "V100": RIGS[0]}


@functools.cache
def outcomes(rig: str, shape_only: bool) -> dict[str, Any]:
    finished = run_forked(str(CALLS), rig, *(["--shape-only"] if shape_only else []))
    assert finished.returncode == 0, finished.stderr[-4000:]
    results: dict[str, Any] = json.loads(finished.stdout)
    return results


def outcome(gpu: str, call: str) -> dict[str, Any]:
    parts = gpu.replace("-", " ").split()
    results = outcomes(RIG_OF_GPU[gpu], False)
    (found,) = (
        result
        for name, result in results.items()
        if all(part in name for part in parts) and name.endswith(f": {call}")
    )
    return dict(found)


FLASH, EFFICIENT, MATH, CUDNN = (
    "FLASH_ATTENTION",
    "EFFICIENT_ATTENTION",
    "MATH",
    "CUDNN_ATTENTION",
)

# Name of the call: the choice on each of these. Comments name the deciding filter.
CHOOSERS = ("A100", "T4", "RTX-4090", "H100")
CHOICES = {
    # check_prefer_cudnn_attention: cuDNN first on major 9 and 10; flash needs sm80
    "half": (FLASH, EFFICIENT, FLASH, CUDNN),
    # can_use_mem_efficient_attention: bfloat16 from sm80
    "bfloat16": (FLASH, MATH, FLASH, CUDNN),
    # check_dtypes_low_precision: flash and cuDNN accept half precision only
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
    # pad_last_dim pads 20 to 24 for flash; minimum_gemm_alignment is 8 in half precision with
    # tensor cores; check_cudnn_tensor_shapes requires multiples of 8
    "head_of_20": (FLASH, MATH, FLASH, FLASH),
    # minimum_gemm_alignment is 4 in float32 from sm80, 1 before
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
    # check_batch_size_and_num_heads_dense: memory-efficient attention has no grouped heads
    "grouped_query": (FLASH, MATH, FLASH, CUDNN),
    "float_grouped_query": (MATH, MATH, MATH, MATH),
    # check_cudnn_tensor_shapes: more than one key
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
    found = tuple(outcome(gpu, call).get("choice") for gpu in CHOOSERS)
    assert found == CHOICES[call]


def test_no_available_kernel() -> None:
    failed = outcome("A100", "only_flash_float")
    assert failed["error"] == "No available kernel. Aborting execution."
    messages = [text.split(" (Triggered")[0] for text in failed["warnings"]]
    assert messages == [
        "Memory efficient kernel not used because:",
        "Memory Efficient attention has been runtime disabled.",
        "Flash attention kernel not used because:",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: "
        "float, Key dtype: float, and Value dtype: float instead.",
        "cuDNN attention kernel not used because:",
        "cuDNN attention has been runtime disabled.",
    ]
    warnings_on_t4 = " ".join(outcome("T4", "only_cudnn")["warnings"])
    assert "cuDNN MHA only supports gpu architectures in the range [sm80, sm121]" in warnings_on_t4


DENSE = [32768, 8192, 64, 1]
TOKENS_FIRST = [32768, 64, 256, 1]
SHAPE = [2, 4, 128, 64]


def test_flash_saved_tensors() -> None:
    result = outcome("A100", "dropout")
    assert result["output"] == ["float16", SHAPE, DENSE, "cuda"]
    saved = result["saved"]
    assert saved["logsumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    # flash_api.cpp, mha_varlen_fwd: seed and offset are one tensor on the device
    assert saved["rng_state"] == ["uint64", [2], [1], "cuda"]
    assert saved["unused"] == ["uint64", [], [], "cuda"]
    assert saved["cum_seq_q"] == saved["cum_seq_k"] == "None"
    assert (saved["max_q"], saved["max_k"]) == ("128", "128")
    assert result["offset"] == 2 * 4 * 32  # flash_api.cpp: b * h * 32
    assert outcome("A100", "tokens_first")["output"] == ["float16", SHAPE, TOKENS_FIRST, "cuda"]


def test_efficient_saved_tensors() -> None:
    result = outcome("T4", "dropout")
    assert result["output"] == ["float16", SHAPE, TOKENS_FIRST, "cuda"]
    saved = result["saved"]
    assert saved["log_sumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    # attention.cu, note "Seed and Offset Device": on the host unless a graph is captured
    assert saved["philox_seed"] == saved["philox_offset"] == ["int64", [], [], "cpu"]
    assert result["offset"] == 2 * 4 * 128 * 128  # one number for each score
    # rows up to the next multiple of 32
    assert outcome("A100", "float")["saved"]["log_sumexp"][1] == [2, 4, 128]


def test_cudnn_saved_tensors() -> None:
    result = outcome("H100", "dropout")
    assert result["output"] == ["float16", SHAPE, DENSE, "cuda"]
    saved = result["saved"]
    assert saved["logsumexp"] == ["float32", [2, 4, 128], [512, 128, 1], "cuda"]
    assert saved["philox_seed"] == saved["philox_offset"] == ["int64", [], [], "cuda"]


def test_flash_memory() -> None:
    result = outcome("A100", "tokens_first")
    tensor = 2 * 4 * 128 * 64 * 2
    # The forward pass needs no memory beyond its results.
    assert result["forward"][1] == result["forward"][0]
    # flash_api.cpp, mha_bwd: three gradients, softmax_d, dq_accum and the incoming gradient
    scratch = 2 * 4 * 128 * 4 + 2 * 128 * 4 * 64 * 4
    incoming = tensor
    assert result["end"][1] == result["forward"][0] + incoming + 3 * tensor + scratch
    # attention_backward.cu: the kernel needs tokens before heads, so other layouts are copied
    copies = outcome("A100", "half")
    assert copies["end"][1] == copies["forward"][0] + incoming + 5 * tensor + scratch


def test_efficient_memory() -> None:
    result = outcome("A100", "float")
    tensor, sums = 2 * 4 * 128 * 64 * 4, 2 * 4 * 128 * 4
    assert result["forward"][1] == result["forward"][0]
    # attention_backward.cu: gradients; a product, its sums and their transposed copy, which is
    # delta; kernel_backward.h: two tiles of 64 by 64 floats and 16 bytes for each of 8 heads,
    # rounded up to whole blocks of 512 bytes
    workspace = (8 * 2 * (64 * 64 + 4) * 4 + 511) // 512 * 512
    scratch = max(tensor + 2 * sums, sums + workspace)
    incoming = tensor
    assert result["end"][1] == result["forward"][0] + incoming + 3 * tensor + scratch
    # In half precision, heads of more than 128 have an additional float32 output.
    wide = outcome("T4", "head_of_160")
    assert wide["forward"][1] == wide["forward"][0] + 2 * 4 * 128 * 160 * 4


@pytest.mark.parametrize(("gpu", "is_computed_by_kernel"), [("T4", True), ("V100", False)])
def test_efficient_memory_of_wide_heads(gpu: str, is_computed_by_kernel: bool) -> None:
    result = outcome(gpu, "head_of_160_with_few_keys")
    queries, keys, sums = 512 * 160 * 2, 64 * 160 * 2, 512 * 4
    # attention_backward.cu: only capabilities 7.0 to 7.4 compute delta before the kernel if the
    # gradients of keys and values do not stay in registers. Float32 copies of the output and its
    # gradient, their product, its sums and the transposed copy then exist at once.
    expression = sums if is_computed_by_kernel else 3 * 2 * queries + 2 * sums
    # kernel_backward.h: 64 keys by 160 elements, rounded up to 256, for each of two gradients, and
    # 4 by 3 tiles of 128 by 64 floats and 16 bytes
    workspace = (2 * 64 * 256 * 4 + 4 * 3 * (128 * 64 * 4 + 16) + 511) // 512 * 512
    scratch = max(expression, sums + workspace)
    gradients = queries + 2 * keys
    incoming = queries
    assert result["end"][1] == result["forward"][0] + incoming + gradients + scratch


def test_flash_decoding_splits_the_keys() -> None:
    result = outcome("A100", "decoding")
    # num_splits_heuristic: 8 query blocks for 2 * 108 block slots, 16 key blocks: 16 splits,
    # each with an output and a sum for each of 8 heads; and 512 bytes each for logsumexp,
    # rng_state and unused
    outputs, sums = 16 * 8 * 64 * 4, 16 * 8 * 4
    assert result["forward"][1] - result["forward"][0] == outputs + sums + 3 * 512
    # Half of the keys have 8 key blocks, and as many splits.
    result = outcome("A100", "decoding_with_fewer_keys")
    assert result["forward"][1] - result["forward"][0] == outputs // 2 + 4 * 512
    # With heads of 128 there are 32 key blocks, and again 16 splits.
    result = outcome("A100", "decoding_with_heads_of_128")
    assert result["forward"][1] - result["forward"][0] == 2 * outputs + sums + 3 * 512


@pytest.mark.parametrize("rig", RIGS)
def test_both_modes_agree(rig: str) -> None:
    computed, shapes = outcomes(rig, False), outcomes(rig, True)
    assert computed == shapes
