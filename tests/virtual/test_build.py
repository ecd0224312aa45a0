"""The build of a C++ extension: kept, shared between processes, and never used half-finished.

A small real extension stands for the backend, which takes longer to compile.
``ANYRIG_TEST_BUILDERS=10`` has as many processes start at once by hand.

More than 400 lines: every test builds the one small extension, and looks at the same folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from anyrig.errors import BuildError, NoCompilerError
from anyrig.virtual import build, library_cache
from anyrig.virtual.compiler import Compiler
from anyrig.virtual.trial import try_library

SOURCE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "anyrig_virtual_extension"};
PyMODINIT_FUNC PyInit_anyrig_virtual_extension() { return PyModule_Create(&definition); }
"""
BUILD = "import sys, pathlib; from anyrig.virtual.build import build_extension; "
BUILD += "print(build_extension(pathlib.Path(sys.argv[1])))"

BUILDERS = int(os.environ.get("ANYRIG_TEST_BUILDERS", "4"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "module.cpp").write_text(SOURCE)
    (folder / "other.cpp").write_text("int other() { return 1; }\n")
    return folder


def start_build(sources: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(sources)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def truncate(library: Path) -> None:
    os.truncate(library, library.stat().st_size // 2)


def flip_a_bit(library: Path) -> None:
    content = bytearray(library.read_bytes())
    content[len(content) // 2] ^= 1
    library.write_bytes(content)


def forget_the_hash(library: Path) -> None:
    library.with_name(f"{library.name}.sha256").unlink()


def garble_the_hash(library: Path) -> None:
    library.with_name(f"{library.name}.sha256").write_bytes(b"\xff")


def open_to_others(library: Path) -> None:
    library.parent.chmod(0o777)


def make_endless(sources: Path) -> None:
    """Let the compiler wait for a header that nobody writes: a build to be killed."""
    os.mkfifo(sources / "endless.h")
    (sources / "other.cpp").write_text('#include "endless.h"\n')


def compilers(sources: Path) -> list[int]:
    """The processes that compile below `sources`, drivers and their children."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(sources) in word for word in process.info["cmdline"] or ())
        and process.info["cmdline"][0] != sys.executable
    ]


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def leftovers(library: Path) -> list[str]:
    return [path.name for path in library.parent.parent.glob("*.building-*")]


def test_a_build_is_kept(sources: Path) -> None:
    library = build.build_extension(sources)
    first = library.stat().st_mtime_ns
    assert build.build_extension(sources) == library
    assert library.stat().st_mtime_ns == first
    assert leftovers(library) == []
    assert not library.parent.with_name(f"{library.parent.name}.builder").exists()


def test_a_build_is_its_users_alone_whatever_the_umask(sources: Path) -> None:
    before = os.umask(0)
    try:
        library = build.build_extension(sources)
    finally:
        os.umask(before)
    made = [library.parent, *library.parent.iterdir()]
    assert len(made) == 4  # with the hash and the compiler's warnings
    assert [file.stat().st_mode & 0o022 for file in made] == [0] * 4
    assert library_cache.is_intact(library)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of root")
def test_what_root_keeps_for_all_is_loaded_unless_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_cache.os, "geteuid", lambda: 1234)
    tmp_path.chmod(0o755)
    assert library_cache._only_this_user_writes(tmp_path)
    for mode in (0o775, 0o757):
        tmp_path.chmod(mode)
        words = f"belongs to user 0 and has the mode {mode:o}, .* not loaded for user 1234"
        with pytest.raises(BuildError, match=words):
            library_cache._only_this_user_writes(tmp_path)


def test_a_build_again_replaces_the_kept_one(
    sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = build.build_extension(sources)
    library.write_bytes(b"broken")
    assert build.build_extension(sources, again=True) == library
    assert library.read_bytes()[:4] == b"\x7fELF"
    assert "damaged" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "damage", [truncate, flip_a_bit, forget_the_hash, garble_the_hash, open_to_others]
)
def test_what_is_damaged_or_open_to_others_is_built_again(
    damage: Callable[[Path], None], sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = build.build_extension(sources)
    whole = library.read_bytes()
    damage(library)
    capfd.readouterr()
    assert build.build_extension(sources) == library
    assert library.read_bytes() == whole
    assert library.parent.stat().st_mode & 0o022 == 0
    assert capfd.readouterr().err.startswith(f"anyrig: {library} is damaged, or another user")
    assert build.build_extension(sources) == library
    assert capfd.readouterr().err == ""


def test_a_cache_that_all_may_write_to_is_built_again_and_closed(
    sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    library = build.build_extension(sources)
    library_cache.cache_folder().parent.chmod(0o777)
    assert not library_cache.is_intact(library)
    build.build_extension(sources)
    assert library_cache.is_intact(library)
    err = capfd.readouterr().err
    assert f"other users can write to {library_cache.cache_folder().parent}; removing" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_library_of_another_user_is_not_loaded(sources: Path) -> None:
    library = build.build_extension(sources)
    os.chown(library, 54321, -1)
    with pytest.raises(BuildError, match=r"\.so belongs to user 54321 .*not loaded for user 0"):
        build.build_extension(sources)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without a name")
def test_a_user_without_a_home_is_an_error() -> None:
    # Imported before: this Python may lie where only root reads.
    source = "from anyrig.virtual.library_cache import cache_folder; import os, pwd, socket; "
    source += "import traceback; os.setuid(54321); cache_folder()"
    inside = {**os.environ}
    for name in ("HOME", "XDG_CACHE_HOME"):
        inside.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", source], env=inside, capture_output=True, text=True, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "anyrig.errors.BuildError: there is no cache folder for the virtual GPUs: HOME is not set, "
        "and the user 54321 has no home folder in /etc/passwd; set XDG_CACHE_HOME to a folder"
    )


def test_changed_sources_and_headers_are_built_anew(sources: Path) -> None:
    first = build.build_extension(sources)
    (sources / "added.h").write_text("// a header\n")
    assert build.build_extension(sources) != first


def test_another_compiler_has_a_build_of_its_own(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.build_extension(sources)
    monkeypatch.setenv("CXX", "g++ -pipe")
    assert build.build_extension(sources) != first


def test_processes_that_start_at_once_build_once(sources: Path) -> None:
    builds = [start_build(sources) for _ in range(BUILDERS)]
    outputs = [process.communicate(timeout=120) for process in builds]
    assert len({out for out, _ in outputs}) == 1
    assert sum("building the virtual GPUs" in err for _, err in outputs) == 1


def test_a_killed_build_is_not_taken_for_whole(sources: Path) -> None:
    make_endless(sources)
    killed = start_build(sources)
    assert killed.stderr is not None
    assert "building" in killed.stderr.readline()
    wait_until(lambda: bool(compilers(sources)))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    wait_until(lambda: not compilers(sources))
    versions = next(library_cache.cache_folder().iterdir())
    assert list(versions.glob("*.building-*"))
    assert not list(versions.glob("*/*.so"))


def test_what_a_killed_build_left_is_removed_by_the_next(sources: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    plain = (sources / "other.cpp").read_text()
    make_endless(sources)
    killed = start_build(sources, TMPDIR=str(temporary), CXX="g++")
    cache = library_cache.cache_folder()
    wait_until(lambda: bool(list(cache.glob("*/*.building-*/cc*"))), seconds=60)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    wait_until(lambda: not compilers(sources))
    assert list(temporary.iterdir()) == []
    # The sources have changed meanwhile, so the next build is another one.
    (sources / "endless.h").unlink()
    (sources / "other.cpp").write_text(plain)
    build.build_extension(sources)
    assert list(cache.glob("*/*.building-*")) == []


def test_what_another_process_builds_is_left_alone(sources: Path) -> None:
    library = build.build_extension(sources)
    other = library.parent.with_name("other")
    building = other.with_name("other.building-1")
    building.mkdir()
    killed = library_cache.cache_folder() / "other.building-2"
    killed.mkdir()
    with FileLock(f"{other}.lock"):
        build.build_extension(sources, again=True)
        assert building.exists()
    assert not killed.exists()
    build.build_extension(sources, again=True)
    assert not building.exists()


def test_waiting_has_an_end_and_names_who_builds(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_endless(sources)
    builder = start_build(sources)
    try:
        assert builder.stderr is not None
        assert "building" in builder.stderr.readline()
        monkeypatch.setattr(library_cache, "LONGEST_WAIT_SECONDS", 0.2)
        with pytest.raises(BuildError, match=rf"process {builder.pid} on .* not done after 0 s"):
            build.build_extension(sources)
        assert f"which process {builder.pid} on" in capfd.readouterr().err
    finally:
        builder.send_signal(signal.SIGINT)
        builder.communicate(timeout=30)


def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(sources: Path) -> None:
    make_endless(sources)
    builder = start_build(sources)
    assert builder.stderr is not None
    assert "building" in builder.stderr.readline()
    wait_until(lambda: bool(compilers(sources)))
    builder.send_signal(signal.SIGINT)
    builder.communicate(timeout=30)
    assert not compilers(sources)
    versions = next(library_cache.cache_folder().iterdir())
    assert not list(versions.glob("*.building-*"))


def test_a_refused_source_is_an_error_with_the_compilers_words(sources: Path) -> None:
    (sources / "other.cpp").write_text("int other() { return nothing; }\n")
    with pytest.raises(
        BuildError, match=r"could not be compiled(.|\n)*other\.cpp:1.*nothing"
    ) as raised:
        build.build_extension(sources)
    assert not isinstance(raised.value, NoCompilerError)


def test_no_compiler_is_an_error_with_the_install_command(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NoCompilerError, match=r"install one with: \w+"):
        build.build_extension(sources)


def test_a_compiler_that_cxx_names_and_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "absent-g++")
    with pytest.raises(NoCompilerError, match=r"the compiler 'absent-g..', which CXX names"):
        Compiler.find()


def test_a_library_built_elsewhere_needs_no_compiler(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = build.build_extension(sources)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.build_extension(sources) == library


def test_missing_python_headers_are_an_error_with_the_install_command(
    sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = build.sysconfig.get_path
    monkeypatch.setattr(
        build.sysconfig, "get_path", lambda name: str(tmp_path) if name == "include" else real(name)
    )
    with pytest.raises(NoCompilerError, match=r"has no Python\.h; install them with: \w+"):
        build.build_extension(sources)


def test_a_cache_that_cannot_be_written_is_an_error(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources / "module.cpp"))
    with pytest.raises(BuildError, match=r"cannot be stored in .* set XDG_CACHE_HOME"):
        build.build_extension(sources)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, anyrig.virtual, anyrig.virtual.build, anyrig.virtual.rig; "
    code += "print([name for name in ('torch', 'rich') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\[\]\n", out.stdout)


def test_a_library_that_cannot_be_read_is_an_error(sources: Path) -> None:
    library = build.build_extension(sources)
    library.unlink()
    library.mkdir()
    with pytest.raises(BuildError) as refused:
        build.build_extension(sources)
    assert str(refused.value).startswith(f"{library} cannot be read: ")
    assert str(refused.value).endswith(
        f"; remove {library.parent}, or set XDG_CACHE_HOME to another folder"
    )


def test_a_builder_that_has_not_named_itself_is_another_process(tmp_path: Path) -> None:
    builder = tmp_path / "x.builder"
    assert library_cache._read_builder(builder) == "another process"
    builder.touch()
    assert library_cache._read_builder(builder) == "another process"
    builder.write_text("process 7 on host")
    assert library_cache._read_builder(builder) == "process 7 on host"


def test_libraries_are_kept_where_the_system_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "named"))
    assert library_cache.cache_folder() == tmp_path / "named" / "anyrig" / "virtual"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library_cache.cache_folder() == tmp_path / ".cache" / "anyrig" / "virtual"
    assert library_cache.LONGEST_WAIT_SECONDS == 900


def test_a_library_that_is_none_is_an_error_with_the_command_that_mends_it(
    tmp_path: Path,
) -> None:
    library = tmp_path / "anyrig_virtual_extension.so"
    library.write_text("no library")
    with pytest.raises(BuildError) as refused:
        build.load_library(library)
    assert str(refused.value).startswith(f"the virtual backend {library} cannot be loaded: ")
    assert str(refused.value).endswith("; rebuild it with: anyrig virtual build --again")


CRASHES = SOURCE.replace("{ return", "{ abort(); return").replace(
    "#include", "#include <cstdlib>\n#include", 1
)


def test_a_library_that_crashes_with_a_newer_torch_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "is_newer_than_tested", lambda: True)
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "crashes.cpp").write_text(CRASHES)
    words = r"newer than .* tried: a trial program was ended by SIGABRT; install an older PyTorch"
    with pytest.raises(BuildError, match=words):
        build.build_extension(sources)
    started = time.monotonic()
    with pytest.raises(BuildError, match=words):
        build.build_extension(sources)
    assert time.monotonic() - started < 1


def test_a_trial_that_takes_too_long_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "is_newer_than_tested", lambda: True)
    monkeypatch.setattr(build, "try_library", partial(try_library, limit_seconds=0.001))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "module.cpp").write_text(SOURCE)
    for _ in range(2):
        with pytest.raises(BuildError, match=r"did not end within 0 s; run the program again"):
            build.build_extension(sources)
    assert list((tmp_path / "cache").rglob("*.refused")) == []


def test_this_library_passes_the_trial_for_a_newer_torch() -> None:
    try_library(build.build_extension())
