"""A manifest that was altered, cut off or written by a later version is refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from text_checkpoints import save

from anyrig.checkpoint.manifest import FileFact, Manifest, read_manifest
from anyrig.checkpoint.series import Series
from anyrig.errors import CheckpointDamagedError, CheckpointError


class TestManifest:
    def test_every_altered_byte_is_found(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a", step=7, metric=0.5, best="max")
        manifest, text = read_manifest(path), (path / "manifest.json").read_bytes()
        for index in range(len(text)):
            altered = text[:index] + bytes([text[index] ^ 1]) + text[index + 1 :]
            (path / "manifest.json").write_bytes(altered)
            found = None
            with suppress(CheckpointError):
                found = read_manifest(path)
            assert found in (None, manifest)  # a space may have become a tab

    def test_a_cut_off_one_is_found(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        text = (path / "manifest.json").read_bytes()
        for size in range(len(text)):
            (path / "manifest.json").write_bytes(text[:size])
            with pytest.raises(CheckpointDamagedError, match=r"manifest.json was altered or cut"):
                read_manifest(path)

    def test_a_later_format_is_refused(self, tmp_path: Path) -> None:
        path = save(Series(tmp_path / "a"), "a")
        text = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(text.replace('"format": 1', '"format": 2'))
        with pytest.raises(CheckpointError, match=r"has format 2, .* Update anyrig"):
            read_manifest(path)

    @pytest.mark.parametrize("name", ["../a", "a/b", ".hidden", "", "/etc/passwd", "manifest.json"])
    def test_files_lie_in_the_folder(self, name: str) -> None:
        with pytest.raises(ValueError, match="is not the name of a checkpoint's file"):
            Manifest(1, None, None, None, "", 1, 0.0, {}, {name: FileFact(1, "0" * 64)})
