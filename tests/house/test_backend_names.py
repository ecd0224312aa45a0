"""The C++ files are compiled together, as many at a time as the machine has cores for.

So a name that a file keeps to itself must be its own in the whole backend, or the backend compiles
on some machines alone. Functions may share a name, as long as what they take differs.
"""

import re
from collections import defaultdict
from pathlib import Path

import anyrig.virtual

SOURCES = Path(anyrig.virtual.__file__).parent / "csrc"
OPENING, CLOSING = "namespace {", "} // namespace"
DEFINITION = re.compile(
    r"(?:template <.*> )?(?:struct|class|enum class|enum) (\w+)"
    r"|(?:static |constexpr |const |thread_local )+[\w:<>,*& ]*?(\w+)(?:\{|\[| =|;)"
)


def names_kept(file: Path) -> set[str]:
    names: set[str] = set()
    is_inside = False
    for line in file.read_text().splitlines():
        if line in (OPENING, CLOSING):
            is_inside = line == OPENING
        elif is_inside and (found := DEFINITION.match(line)):
            names.add(found[1] or found[2])
    return names


def test_names_that_files_keep_to_themselves_differ() -> None:
    files = defaultdict(list)
    for file in sorted(SOURCES.rglob("*.cpp")):
        for name in names_kept(file):
            files[name].append(file.relative_to(SOURCES).as_posix())
    assert len(files) > 100
    assert {name: where for name, where in files.items() if len(where) > 1} == {}
