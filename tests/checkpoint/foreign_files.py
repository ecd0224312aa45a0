"""Writes checkpoints in the formats of other tools, with torch, safetensors, or by hand."""

from __future__ import annotations

import json
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def make_tensors() -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in make_model().state_dict().items()}


def make_optimizer_state() -> dict[str, Any]:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def write_torch(path: Path) -> Path:
    torch.save(make_tensors(), path)
    return path


def write_wrapped(path: Path) -> Path:
    torch.save(nn.DataParallel(make_model()).state_dict(), path)
    return path


def write_nested(path: Path, key: str = "model_state_dict") -> Path:
    torch.save({key: make_tensors(), "optimizer": make_optimizer_state(), "epoch": 7}, path)
    return path


def write_legacy(path: Path) -> Path:
    torch.save(
        {"state_dict": make_tensors(), "epoch": 7}, path, _use_new_zipfile_serialization=False
    )
    return path


def write_safetensors(path: Path) -> Path:
    save_file(make_tensors(), path, metadata={"format": "pt", "note": "by hand"})
    return path


def write_lightning(path: Path) -> Path:
    """Write what ``Trainer.save_checkpoint`` does (Lightning's checkpoint_connector)."""
    content = {
        "epoch": 2,
        "global_step": 300,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in make_tensors().items()},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 3}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
        "optimizer_states": [make_optimizer_state()],
        "lr_schedulers": [{"last_epoch": 2, "_last_lr": [0.001]}],
        "hparams_name": "kwargs",
        "hyper_parameters": {"width": 4},
    }
    torch.save(content, path)
    return path


def write_hugging_face(folder: Path, kind: str = "safetensors") -> Path:
    """Write two shards and their index, as ``save_pretrained`` does."""
    folder.mkdir()
    tensors = make_tensors()
    names = [*tensors]
    stem = "model" if kind == "safetensors" else "pytorch_model"
    weight_map = {}
    for number, part in enumerate((names[:3], names[3:]), 1):
        file = f"{stem}-{number:05}-of-00002.{kind}"
        shard = {name: tensors[name] for name in part}
        if kind == "safetensors":
            save_file(shard, folder / file, metadata={"format": "pt"})
        else:
            torch.save(shard, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": 200}, "weight_map": weight_map}
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text("{}")
    return folder


def write_accelerate(folder: Path) -> Path:
    """Write what ``Accelerator.save_state`` does (accelerate's checkpointing.py)."""
    folder.mkdir()
    save_file(make_tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(make_optimizer_state(), folder / "optimizer.bin")
    torch.save({"last_epoch": 3, "_last_lr": [0.1]}, folder / "scheduler.bin")
    torch.save({"scale": 65536.0, "growth_tracker": 0}, folder / "scaler.pt")
    with (folder / "random_states_0.pkl").open("wb") as file:
        pickle.dump({"step": 0, "random_state": random.getstate()}, file)
    return folder


def write_distributed(folder: Path) -> Path:
    import torch.distributed.checkpoint as distributed_checkpoint

    state = {"model": make_tensors(), "optimizer": make_optimizer_state(), "epoch": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "assuming single process"
        distributed_checkpoint.save(state, checkpoint_id=folder)
    return folder


FILES: dict[str, Callable[[Path], Path]] = {
    "plain.pt": write_torch,
    "wrapped.pth": write_wrapped,
    "nested.pt": write_nested,
    "legacy.pt": write_legacy,
    "model.safetensors": write_safetensors,
    "lightning.ckpt": write_lightning,
}
FOLDERS: dict[str, Callable[[Path], Path]] = {
    "hugging_face": write_hugging_face,
    "hugging_face_torch": lambda folder: write_hugging_face(folder, "bin"),
    "accelerate": write_accelerate,
    "distributed": write_distributed,
}
