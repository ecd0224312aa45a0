"""Names that cannot name a program are refused before any process starts."""

from pathlib import Path

import pytest
import typer

from anyrig.cli.program_argument import check_program


@pytest.mark.parametrize("main", ["__main__.py", "__main__.pyc"])
def test_a_folder_with_a_main_file_is_a_program(main: str, tmp_path: Path) -> None:
    (tmp_path / main).write_bytes(b"")
    check_program(str(tmp_path), is_module=False)


@pytest.mark.parametrize("name", ["__main__", "a..b", ".a", "a.", "", "a\0b"])
def test_a_name_that_no_module_can_have(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="after -m"):
        check_program(name, is_module=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "'folder' is a folder without a __main__.py"),
        ("", "there is no script ''"),
        ("y" * 60, f"there is no script {'y' * 60!r}"),
        ("y" * 61, f"there is no script {'y' * 60 + '…'!r}"),
        ("y" * 5000, f"there is no script {'y' * 60 + '…'!r} (File name too long)"),
    ],
)
def test_a_name_that_is_no_scripts(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(typer.BadParameter) as refusal:
        check_program(name, is_module=False)
    assert refusal.value.message == message


def test_a_name_that_may_be_a_program(tmp_path: Path) -> None:
    check_program("package.train", is_module=True)
    (tmp_path / "train.py").write_text("")
    check_program(str(tmp_path / "train.py"), is_module=False)
