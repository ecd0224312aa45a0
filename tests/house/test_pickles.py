"""Nothing of another process is unpickled, but for what docs/security.md names."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "anyrig"
LOADS = re.compile(
    r"pickle\.loads?\(|Unpickler\(|torch\.load\(|gather_object|broadcast_object|marshal\.load"
)

WHY = {
    "checkpoint/foreign/metadata_pickle.py": "makes only classes of that file, which run nothing",
    "checkpoint/foreign/pickle_scan.py": "loads nothing: a message says how to convert a file",
    "checkpoint/foreign/torch_file.py": "with weights_only=True",
    "checkpoint/values_file.py": "with weights_only=True, which unpickles no code",
    "migration/rules/map_location.py": "loads nothing: its examples are source",
    "migration/rules/weights_only.py": "loads nothing: its examples are source",
    "parallel/engines/processes/link.py": "a process and its children, by inherited sockets",
    "parallel/ranks/metrics/exchange.py": "gather_over_ranks takes objects of any class",
    "processes/call.py": "a function and its result, in a private folder of the user's",
    "verification/channel.py": "records of anyrig verify's own processes, in a private folder",
    "verification/two_runs.py": "ranks of one group exchange their records with gather_object",
}


def test_only_these_files_load_pickles() -> None:
    loading = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if LOADS.search(path.read_text())
    }
    assert loading == WHY.keys(), "exchange JSON instead, or say why not in docs/security.md"
