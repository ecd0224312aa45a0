"""Every function that opens, removes or renames a path says why links and special files are safe.

`anyrig.regular_file` opens regular files only, without following links; its callers need no entry.
Each other function has a test that puts links or special files in its way, or a reason why nobody
else can: the path is private to this user, or the user names it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "anyrig"
TESTS = Path(__file__).parents[1]
ROOMS = ("checkpoint", "migration", "processes", "virtual")

METHODS = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "chmod"),
    *("unlink", "rename", "rmdir", "hardlink_to", "symlink_to"),
}
FUNCTIONS = {
    *("open", "io.open", "safe_open", "torch.load", "mmap.mmap", "zipfile.ZipFile", "FileIO"),
    *(f"tempfile.{name}" for name in ("mkstemp", "mkdtemp", "NamedTemporaryFile")),
    *(f"shutil.{name}" for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree")),
    *(f"os.{name}" for name in ("open", "remove", "unlink", "rename", "renames", "replace")),
    *(f"os.{name}" for name in ("rmdir", "removedirs", "truncate", "link", "symlink", "mkfifo")),
}

LINKS = "checkpoint/test_links.py: "
SCRATCH = "the scratch folder, which `_make_folder_of` requires to be a real folder of this user"
CACHE = "virtual/test_build.py: test_a_cache_that_all_may_write_to_is_built_again_and_closed"
RANKS = "the launcher's folder of this rank, with mode 700, or the --log-dir that the user names"
CALL = "a temporary folder with mode 700, which `launch` has made for this call"
PACKAGED = "a file of the installed package"
READ = "checkpoint/test_links.py: test_only_regular_files_of_the_checkpoint_are_read"

# Function -> "file: test" that proves it, or why nobody else can replace the path.
HANDLED = {
    "checkpoint/atomic_file.py: open_atomically": LINKS
    + "test_a_file_that_is_written_replaces_a_link_and_not_its_target",
    "checkpoint/atomic_file.py: _name_once": LINKS
    + "test_a_file_that_is_written_replaces_a_link_and_not_its_target",
    "checkpoint/commit.py: publish": LINKS
    + "test_a_temporary_folder_that_becomes_a_link_gets_no_files",
    "checkpoint/commit.py: remove_surplus": LINKS
    + "test_a_checkpoint_that_was_moved_and_linked_back_stays",
    "checkpoint/commit.py: _remove_files": LINKS
    + "test_a_folder_that_becomes_a_link_before_it_is_emptied_is_not_followed",
    "checkpoint/disk.py: Disk.create": LINKS
    + "test_a_temporary_folder_that_becomes_a_link_gets_no_files",
    "checkpoint/disk.py: Disk.sync_folder": "O_DIRECTORY opens folders only; nothing is changed",
    "checkpoint/disk.py: Disk.rename": "rename(2) follows neither name",
    "checkpoint/disk.py: Disk.unlink": LINKS
    + "test_a_folder_that_becomes_a_link_between_two_files_is_not_followed",
    "checkpoint/disk.py: Disk.remove_folder": "rmdir(2) follows no link, and removes empty folders",
    "checkpoint/foreign/safetensors_file.py: read_safetensors": READ,
    "checkpoint/foreign/torch_file.py: _check_archive": "gets a file that open_regular has opened",
    "checkpoint/foreign/torch_file.py: _check_records": "opens a record of an open archive",
    "checkpoint/foreign/torch_file.py: _read_legacy": "maps a file that open_regular has opened",
    "checkpoint/foreign/torch_file.py: _load": LINKS
    + "test_special_files_of_other_tools_are_refused",
    "checkpoint/values_file.py: _loads_everywhere": "an archive in memory",
    "checkpoint/values_file.py: _load": READ,
    "checkpoint/writer_mark.py: _machine": "two files of /proc",
    "migration/source_file.py: write_source": "migration/test_rewriting.py: "
    "test_mode_and_links_stay",
    "processes/call.py: write_call": CALL,
    "processes/call.py: read_result": CALL,
    "processes/call.py: _make_call": CALL,
    "processes/guardian.py: _guard": "folders that the launcher has made; rmtree follows no links",
    "processes/log_folder.py: new_log_folder": "makes a folder of a new name with mode 700",
    "processes/log_folder.py: keep_log_folder": "processes/test_log_folder.py: "
    "test_nothing_else_is_removed",
    "processes/places.py: write_stack_on_request": RANKS,
    "processes/places.py: read_place": RANKS,
    "processes/places.py: _is_whole": RANKS,
    "processes/rank_end.py: note_exception": RANKS,
    "processes/rank_end.py: _read_note": RANKS,
    "processes/rank_end.py: _tail": RANKS,
    "processes/torch_faults.py: _read_threads": "files of /proc/self/task",
    "virtual/build.py: build_extension": CACHE,
    "virtual/build.py: library_key": PACKAGED,
    "virtual/compiler.py: compile_extension": CACHE,
    "virtual/compiler.py: _write_units": CACHE,
    "virtual/compiler.py: _runs_in_every_call": PACKAGED,
    "virtual/extras/driver/library.py: library_key": PACKAGED,
    "virtual/extras/driver/library.py: compile_library": CACHE,
    "virtual/extras/driver/smi/command.py: _write_output": "the file that the user names with -f",
    "virtual/extras/host_kernel.py: _compile": CACHE,
    "virtual/library_cache.py: matches_record": CACHE,
    "virtual/library_cache.py: store_script": CACHE,
    "virtual/library_cache.py: _build": CACHE,
    "virtual/library_cache.py: _remove_killed_builds": "the user's cache; rmtree follows no links",
    "virtual/library_cache.py: _build_lock": CACHE,
    "virtual/library_cache.py: _make_private": CACHE,
    "virtual/library_cache.py: write_record": CACHE,
    "virtual/library_cache.py: _hash_of": CACHE,
    "virtual/library_cache.py: _read_builder": CACHE,
    "virtual/operators.py: read_operators": PACKAGED,
    "virtual/torch_files.py: TorchFiles.unpacked": "files that the build of a wheel has unpacked",
    "virtual/redirected_files.py: _Files._move_to_version": SCRATCH,
    "virtual/rehearsal_folder.py: _remove": "virtual/test_rehearsal_folder.py: "
    "test_a_link_to_another_folder_is_not_followed",
    "virtual/roll_call_sockets.py: _replace_by_nothing": "/dev/null",
    "virtual/scratch.py: Scratch.for_writing": SCRATCH,
    "virtual/scratch.py: Scratch.redirect_open_file": SCRATCH,
    "virtual/scratch.py: Scratch.remove": "rehearsal/test_saved_files.py: "
    "test_what_else_a_script_does_to_old_files",
    "virtual/scratch.py: Scratch.mark_removed": SCRATCH,
    "virtual/scratch.py: Scratch.unmark_removed": SCRATCH,
    "virtual/scratch.py: Scratch.delete_versions": SCRATCH,
    "virtual/scratch.py: Scratch._report": SCRATCH,
    "virtual/scratch.py: _redirect_descriptor": SCRATCH,
    "virtual/tensor_files.py: _writer": SCRATCH,
    "virtual/torch_build.py: published_builds": PACKAGED,
}


def opens_path(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if ast.unparse(node.func) in FUNCTIONS:
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    # `str.replace` has two arguments, and `Path.replace` one.
    is_path = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords
    return is_path or node.func.attr in METHODS


def functions_in(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yield the functions that open a path, outermost functions and methods only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions_in(node, f"{prefix}{node.name}.")
        elif any(map(opens_path, ast.walk(node))):
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield f"{prefix}{node.name}" if is_function else f"{prefix}line {node.lineno}"


def test_every_function_that_opens_a_path_handles_links_and_special_files() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for name in functions_in(ast.parse(path.read_text()))
    }
    new, gone = sorted(found - HANDLED.keys()), sorted(HANDLED.keys() - found)
    assert new == [], "open the path with anyrig.regular_file, or add a test of links and its name"
    assert gone == [], "remove these entries"


def test_the_named_tests_exist() -> None:
    for function, reason in HANDLED.items():
        file, separator, name = reason.partition(".py: ")
        if separator:
            tree = ast.parse((TESTS / f"{file}.py").read_text())
            names = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
            assert name in names, (function, reason)


@pytest.mark.parametrize(
    "line",
    [
        "open(x)",
        "x.unlink()",
        "a.replace(b)",
        "os.replace(a, b)",
        "shutil.rmtree(a)",
        "x.open('w')",
    ],
)
def test_a_function_is_found(line: str) -> None:
    source = f"class A:\n    def f(self, x):\n        def g():\n            {line}\n"
    assert [*functions_in(ast.parse(source))] == ["A.f"]
    assert [
        *functions_in(ast.parse("def f(a):\n    return a.replace('x', 'y') + replace(a, b=1)"))
    ] == []
