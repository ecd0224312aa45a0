"""What a file of another tool holds, and what showed its format."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from torch import Tensor

from ..wrapper_prefix import find_prefixes, remove_wrappers, shared_prefix


class Format(Enum):
    """Formats of a model's tensors."""

    ANYRIG = "anyrig checkpoint"
    TORCH = "torch file"
    LEGACY_TORCH = "torch file from before PyTorch 1.6"
    LIGHTNING = "Lightning checkpoint"
    SAFETENSORS = "safetensors file"
    HUGGING_FACE = "Hugging Face folder of safetensors"
    HUGGING_FACE_TORCH = "Hugging Face folder of torch files"
    ACCELERATE = "accelerate folder"
    DISTRIBUTED = "folder of torch.distributed.checkpoint"


@dataclass(frozen=True)
class Recognition:
    """A format, and what in the file or folder shows that format."""

    format: Format
    reason: str

    def __str__(self) -> str:
        return f"{self.format.value} ({self.reason})"


@dataclass(frozen=True)
class ForeignState:
    """The contents of a file or folder that anyrig did not write.

    Attributes:
        path: the file or folder.
        recognition: its format, and why.
        tensors: the model's tensors on the CPU, under the names of the file; mapped from the
            file where the format allows this.
        extra: whatever else was read: optimizer state, epoch and so on, under the file's names.
        unread: why each file of a folder was not read, by its name; for a checkpoint of anyrig, by
            what its tensors are, such as ``"optimizer"``.
    """

    path: Path
    recognition: Recognition
    tensors: Mapping[str, Tensor]
    extra: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def plain_tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, without the prefixes that wrappers of the model added.

        These are ``module.`` and the parts that PyTorch reserves, such as ``_orig_mod``. In a
        Lightning checkpoint, ``model.`` is removed too if every name begins with it.
        """
        plain = {remove_wrappers(name): tensor for name, tensor in self.tensors.items()}
        if len(plain) < len(self.tensors):  # two names became one
            return dict(self.tensors)
        is_lightning = self.recognition.format is Format.LIGHTNING
        if is_lightning and all(name.startswith("model.") for name in plain):
            plain = {name.removeprefix("model."): tensor for name, tensor in plain.items()}
        prefix = shared_prefix(plain)
        return {name[len(prefix) :]: tensor for name, tensor in plain.items()}

    def fit_names(self, expected: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors under the names that a model expects, as far as wrappers explain.

        Args:
            expected: the names of the model's state dict. What wrappers added on either side is
                removed or added; other names stay as they are.
        """
        wanted = {remove_wrappers(name): name for name in expected}
        found = {remove_wrappers(name): tensor for name, tensor in self.tensors.items()}
        if len(found) < len(self.tensors) or len(wanted) < len(expected):
            return dict(self.tensors)  # two names became one
        prefixes = find_prefixes(wanted, found)
        if prefixes is not None:
            found = {
                prefixes.of_model + name[len(prefixes.of_file) :]: tensor
                for name, tensor in found.items()
            }
        return {wanted.get(name, name): tensor for name, tensor in found.items()}
