"""Read a safetensors file; the safetensors library maps it into memory."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import CheckpointDamagedError
from ...regular_file import open_regular, path_to_open_again
from ..safetensors_header import read_open_header

# PyTorch's error when a signal handler raises an exception, such as KeyboardInterrupt, while
# PyTorch asks the file's storage for its length: findings/interrupt_while_safetensors_reads.sh.
_INTERRUPTED = "could not determine the shape of object type 'torch.storage.UntypedStorage'"


def read_safetensors(
    path: Path, *, follow_links: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file by all their names, and its metadata.

    Args:
        path: the file.
        follow_links: whether the path may be a link to the file.

    Raises:
        CheckpointDamagedError: the file is truncated or altered.
        OSError: the file is not regular, or cannot be read.
        KeyboardInterrupt: a handler of a signal has raised an exception meanwhile.
    """
    with open_regular(path, follow_links=follow_links) as opened:
        header = read_open_header(opened, path)
        try:
            with safe_open(path_to_open_again(opened), framework="pt", device="cpu") as file:
                tensors = {name: file.get_tensor(name) for name in header.tensors}
        except (FileNotFoundError, PermissionError):
            raise
        except (SafetensorError, AttributeError, RuntimeError, ValueError, TypeError) as error:
            if _INTERRUPTED in str(error):
                raise KeyboardInterrupt from None
            # The file is damaged, or has an element type that this PyTorch does not have.
            raise CheckpointDamagedError(
                f"{path} cannot be read: {type(error).__name__}: {error}"
            ) from None
    return {name: tensors[stored] for name, stored in header.all_names().items()}, dict(
        header.metadata
    )
