"""Describe a checkpoint or a series: number, step, files, and every tensor's shape and type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import CheckpointError
from .any_model import is_series
from .folder_name import number_in
from .foreign.read import read_foreign
from .manifest import Manifest, read_manifest
from .safetensors_header import read_header
from .safetensors_writer import torch_name_of
from .saved_tensors import read_tensors
from .series import Series, is_checkpoint_folder, open_checkpoint
from .snapshot_files import VALUES_NAME, read_tensor_values
from .tensor_file_names import is_in_shards, role_of
from .verify import find_rename


@dataclass(frozen=True)
class TensorFact:
    """Name, shape and element type of a tensor, and the file that holds it, if known."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str | None


@dataclass(frozen=True)
class CheckpointDescription:
    """What one checkpoint holds.

    Attributes:
        path: the folder or file.
        format: the format, such as ``"anyrig checkpoint"`` or ``"safetensors file"``.
        reason: what showed the format.
        number: the number of the save in its series; None for checkpoints of other tools.
        step: the step of the training run, if known.
        metric: the metric that was saved with the checkpoint, if known.
        layout: how the model was spread when it was saved, if known.
        saved_at: when the checkpoint was saved, in seconds since 1970, if known.
        files: the size of each file in bytes, by name.
        tensors: every tensor.
        extra: what else the checkpoint holds, such as ``"optimizer"``.
        unread: why each file was not read, by its name.
    """

    path: str
    format: str
    reason: str
    files: Mapping[str, int]
    tensors: tuple[TensorFact, ...]
    number: int | None = None
    step: int | None = None
    metric: float | None = None
    layout: str | None = None
    saved_at: float | None = None
    extra: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SeriesEntry:
    """One checkpoint of a series; `problem` says why it cannot be loaded, or is None."""

    name: str
    number: int
    step: int | None = None
    metric: float | None = None
    bytes: int | None = None
    saved_at: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class SeriesDescription:
    """The checkpoints of a series, the oldest first, and the names of the latest and the best."""

    path: str
    checkpoints: tuple[SeriesEntry, ...]
    latest: str | None
    best: str | None


def describe(path: Path, key: str | None = None) -> CheckpointDescription | SeriesDescription:
    """Return what a checkpoint or a series holds. Contents are not compared with checksums.

    Args:
        path: a checkpoint of anyrig or of another tool, or a series.
        key: the key of the model's state dict, in a file with several.

    Raises:
        CheckpointError: the checkpoint is damaged, not recognised, or not safe to read.
    """
    if is_series(path):
        return _describe_series(path)
    if path.is_dir() and is_checkpoint_folder(path):
        return _describe_checkpoint(path)
    state = read_foreign(path, key=key, is_checked=False)
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    return CheckpointDescription(
        str(path),
        state.recognition.format.value,
        state.recognition.reason,
        {each.name: each.stat().st_size for each in files},
        tuple(
            TensorFact(name, tuple(each.shape), str(each.dtype).removeprefix("torch."), None)
            for name, each in state.tensors.items()
        ),
        extra=tuple(state.extra),
        unread=state.unread,
    )


def _describe_checkpoint(path: Path) -> CheckpointDescription:
    manifest = open_checkpoint(path, hashes=False).manifest
    tensors: list[TensorFact] = []
    for role in sorted({*map(role_of, manifest.files)} - {None}, key=str):
        if is_in_shards(str(role), manifest.files):
            tensors += _facts_of_shards(path, str(role), manifest)
            continue
        for file in sorted(each for each in manifest.files if role_of(each) == role):
            header = read_header(path / file)
            for name, stored in header.all_names().items():
                each = header.tensors[stored]
                tensors.append(TensorFact(name, each.shape, torch_name_of(each.dtype), file))
    if VALUES_NAME in manifest.files:
        tensors += [
            TensorFact(name, tuple(each.shape), str(each.dtype).removeprefix("torch."), VALUES_NAME)
            for _, name, each in read_tensor_values(path)
        ]
    return CheckpointDescription(
        str(path),
        "anyrig checkpoint",
        "it has a manifest",
        {name: fact.bytes for name, fact in sorted(manifest.files.items())},
        tuple(tensors),
        manifest.number,
        manifest.step,
        _finite(manifest.metric),
        manifest.layout,
        manifest.saved_at,
    )


def _facts_of_shards(path: Path, role: str, manifest: Manifest) -> Iterator[TensorFact]:
    """Yield the whole tensors that files of shards hold together."""
    files = f"{role}.shard.*.safetensors"
    for name, tensor in read_tensors(path, role, manifest.files).items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield TensorFact(name, tuple(tensor.shape), dtype, files)


def _describe_series(path: Path) -> SeriesDescription:
    series = Series(path)
    latest, best = series.latest(hashes=False), series.best(hashes=False)
    return SeriesDescription(
        str(path),
        tuple(_describe_entry(folder) for folder in reversed(series.folders())),
        None if latest is None else latest.path.name,
        None if best is None else best.path.name,
    )


def _describe_entry(folder: Path) -> SeriesEntry:
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return SeriesEntry(folder.name, number_in(folder.name), problem=str(error))
    problem: str | None = None
    try:
        open_checkpoint(folder, hashes=False)
        renamed = find_rename(folder, manifest)
        problem = None if renamed is None else str(renamed)
    except CheckpointError as error:
        problem = str(error)
    return SeriesEntry(
        folder.name,
        number_in(folder.name),
        manifest.step,
        _finite(manifest.metric),
        manifest.bytes,
        manifest.saved_at,
        problem,
    )


def _finite(value: float | None) -> float | None:
    """Return a metric, or None if JSON cannot hold it."""
    return value if value is None or math.isfinite(value) else None
