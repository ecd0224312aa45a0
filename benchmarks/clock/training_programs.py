"""Whole training steps that timm's authors measured on an RTX 3090, as work records.

`python -m clock.training_programs MEASUREMENTS PART COUNT`, in the folder of benchmarks, runs the
PART-th of COUNT parts of the models on a virtual RTX 3090 in shape-only mode, and prints one JSON
object per program: the distinct work records of a step, and how often each occurs. Needs timm. The
published steps ran with float16 autocast, SGD with momentum, and unfused attention.

With RESULTS as a further argument, it runs the models of that file which have grouped convolutions
and are not in MEASUREMENTS. The file is one of huggingface/pytorch-image-models (aa4b5850), of
channels-last tensors: `results/benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv`.
"""

from __future__ import annotations

import csv
import json
import sys
import zlib
from pathlib import Path
from typing import Any

from clock.work_log import distinct_records

GPU = "RTX-3090"
FILE = "timm_train_amp_rtx3090_torch1.12.csv"


def fits(model: str) -> bool:
    """Return whether `model` is for fitting; the others judge."""
    return zlib.crc32(model.encode()) % 2 == 0


def read_programs(folder: Path) -> list[dict[str, str]]:
    with (folder / FILE).open() as file:
        return list(csv.DictReader(file))


def read_grouped(folder: Path, results: Path) -> list[dict[str, str]]:
    """Return the lines of `results` with grouped convolutions, of models not in `folder`.

    Models that timm no longer has, or has changed since, are left out.
    """
    known = {line["model"] for line in read_programs(folder)}
    with results.open() as file:
        lines = [line | {"layout": "nhwc"} for line in csv.DictReader(file)]
    return [line for line in lines if line["model"] not in known and _is_grouped(line)]


def _is_grouped(line: dict[str, str]) -> bool:
    import timm
    import torch

    try:
        with torch.device("meta"):
            model = timm.create_model(line["model"])
    except RuntimeError:  # timm does not know the model
        return False
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    convolutions = (m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    return abs(millions - float(line["param_count"])) < 0.02 and any(
        1 < convolution.groups < convolution.in_channels for convolution in convolutions
    )


def record_step(line: dict[str, str]) -> dict[str, Any]:
    """Run two training steps, and return the work records of the second."""
    import timm
    import torch
    from torch.nn import CrossEntropyLoss

    from anyrig.virtual.build import load_extension

    core = load_extension()
    batch, size = int(line["train_batch_size"]), int(line["train_img_size"])
    order = torch.channels_last if line["layout"] == "nhwc" else torch.contiguous_format
    with torch.device("cuda"):
        model = timm.create_model(line["model"])
    model = model.to(memory_format=order).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, foreach=False)
    x = torch.empty(batch, 3, size, size, device="cuda").to(memory_format=order)
    y = torch.empty(batch, dtype=torch.long, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            output = model(x)
            loss = CrossEntropyLoss()(output[0] if isinstance(output, tuple) else output, y)
        loss.backward()
        optimizer.step()

    step()
    core.begin_work_log()
    step()
    return {
        "model": line["model"],
        "layout": line["layout"],
        "ms": float(line["train_step_time"]),
        **distinct_records(core.end_work_log()),
    }


def main() -> int:
    import gc

    import torch
    from timm.layers import set_fused_attn

    from anyrig.virtual import install

    folder, part, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    install(GPU, shape_only=True)
    set_fused_attn(False)
    lines = read_grouped(folder, Path(sys.argv[4])) if len(sys.argv) > 4 else read_programs(folder)
    for line in lines[part::count]:
        try:
            print(json.dumps(record_step(line)), flush=True)
        except Exception as error:  # one model must not end the others
            print(f"{line['model']} {line['layout']}: {error!r}"[:300], file=sys.stderr)
        gc.collect()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
