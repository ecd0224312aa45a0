"""Whole inference steps that timm's authors measured, as work records.

`python -m clock.inference_programs MEASUREMENTS PART COUNT [MODELS]`, in the folder of benchmarks,
runs the PART-th of COUNT parts of the models in ``timm_infer_amp.csv`` on a virtual GPU in
shape-only mode, and prints one JSON object per program: what was measured, the distinct work
records of a step, and how often each occurs. MODELS limits the number of models of a part. Their
order is that of a checksum, so that any number of them is a sample of all. Needs timm. The steps
ran with float16 autocast in inference mode.
"""

from __future__ import annotations

import csv
import gc
import json
import sys
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from clock.work_log import distinct_records

FILE = "timm_infer_amp.csv"
# Holds every published batch, and chooses the kernels of attention that the measured GPUs choose.
RECORDED_ON = "RTX-PRO-6000"
# The results do not state these flags of timm's benchmark; their times do. With `fast_norm`, layer
# and group normalization compute in float16: float32 would take 20 to 90 % more of a step of davit,
# beit3 or resnetv2_101x1_bit. From this PyTorch on, parallel branches were merged, by
# `reparameterize_model`: fastvit and repvgg took 40 % less time than before.
FAST_NORM = True
MERGED_SINCE = "2.9"
# Attention that no fused kernel takes, such as that of five dimensions over windows, computes in
# float32 since (pytorch/pytorch, pull request 128922), and in float16 before.
FLOAT32_SINCE = "2.5"
# timm has changed these models since they were measured.
CHANGED = {"ecaresnext50t_32x4d"}  # 15.4 million parameters then, 25.0 now


def read_steps(folder: Path) -> list[dict[str, str]]:
    """Return the measured steps, those of one model together, in the order of a checksum."""
    with (folder / FILE).open() as file:
        lines = [line for line in csv.DictReader(file) if line["model"] not in CHANGED]
    return sorted(lines, key=lambda line: (zlib.crc32(f"{line['model']}.".encode()), line["model"]))


def record_model(model: str, lines: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the records of each batch and layout of `lines` that the default model takes."""
    import timm
    import torch
    from timm.utils import reparameterize_model

    with torch.device("cuda"):
        module = timm.create_model(model).eval()
    module.requires_grad_(False)
    known = module.default_cfg
    sizes = {known[name][-1] for name in ("input_size", "test_input_size") if name in known}

    has_branches = any(
        hasattr(part, name)
        for part in module.modules()
        for name in ("fuse", "reparameterize", "switch_to_deploy")
    )

    def program(line: dict[str, str]) -> tuple[bool, bool, bool, int, int]:
        is_merged = has_branches and line["torch"] >= MERGED_SINCE
        is_nhwc = "channels-last" in line["gpu"]
        in_half = line["torch"] < FLOAT32_SINCE
        return is_merged, is_nhwc, in_half, int(line["image_size"]), int(line["batch"])

    was_merged = False
    chosen = sorted((line for line in lines if int(line["image_size"]) in sizes), key=program)
    for (is_merged, is_nhwc, in_half, size, batch), measured in groupby(chosen, program):
        if is_merged and not was_merged:
            module, was_merged = reparameterize_model(module), True
        order = torch.channels_last if is_nhwc else torch.contiguous_format
        module.to(memory_format=order)
        x = torch.empty(batch, 3, size, size, device="cuda").to(memory_format=order)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(in_half)
        records = _record_step(module, x)
        for line in measured:
            yield {
                "gpu": line["gpu"].partition(" ")[0],
                "torch": line["torch"],
                "model": model,
                "layout": "nhwc" if is_nhwc else "nchw",
                "image_size": size,
                "batch": batch,
                "ms": float(line["step_ms"]),
                **records,
            }


def _record_step(module: Any, x: Any) -> dict[str, Any]:
    import torch

    from anyrig.virtual.build import load_extension

    core = load_extension()

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cuda", torch.float16):
            module(x)

    core.begin_work_log()
    step()
    return distinct_records(core.end_work_log())


def main() -> int:
    import torch
    from timm.layers import set_fast_norm

    from anyrig.virtual import install

    folder, part, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    models = int(sys.argv[4]) if len(sys.argv) > 4 else None
    install(RECORDED_ON, shape_only=True)
    set_fast_norm(FAST_NORM)
    by_model = [(m, list(g)) for m, g in groupby(read_steps(folder), lambda line: line["model"])]
    for model, lines in by_model[part::count][:models]:
        try:
            for program in record_model(model, lines):
                print(json.dumps(program), flush=True)
        except Exception as error:  # one model must not end the others
            print(f"{model}: {error!r}"[:300], file=sys.stderr)
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
