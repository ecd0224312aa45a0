"""Private names of PyTorch that checkpoints rely on."""

import io

import pytest
import torch

from anyrig.checkpoint.foreign.pickle_scan import weights_only_names


class Known:
    pass


def test_the_names_that_weights_only_allows_are_listed() -> None:
    names = weights_only_names()
    assert {"torch.FloatStorage", "torch._utils._rebuild_tensor_v2", "torch.Size"} <= names
    assert not {name for name in names if name.startswith(("os.", "posix.", "builtins.ev"))}


def test_names_that_the_program_allows_are_listed() -> None:
    name = f"{Known.__module__}.Known"
    assert name not in weights_only_names()
    with torch.serialization.safe_globals([Known]):
        assert name in weights_only_names()
    with torch.serialization.safe_globals([(Known, "elsewhere.Known")]):
        assert "elsewhere.Known" in weights_only_names()


@pytest.mark.skipif(torch.__version__ < (2, 14), reason="PyTorch warns from 2.14 on")
def test_pytorch_warns_that_it_checks_sparse_tensors() -> None:
    """If this fails, `foreign.torch_file` need not silence the warning of this version."""
    file = io.BytesIO()
    torch.save(torch.eye(2).to_sparse(), file)
    file.seek(0)
    with pytest.warns(UserWarning, match="Validating sparse tensor invariants"):
        torch.load(file, weights_only=True)
