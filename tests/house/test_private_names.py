"""Every private name of PyTorch that anyrig uses is in its room's list, with what breaks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch  # noqa: F401  # names are looked up in its imported modules
from private_uses import Use, uses_in_package

import anyrig
from anyrig.private_names import ROOMS, PrivateName, missing_in_room

PACKAGE = Path(anyrig.__file__).parent

# Names of Python, and of anyrig where a file does not say whose object it has.
OTHERS = {
    "_compat_pickle": "Python's names of classes in old pickles",
    "_count": "threads of Python, see _thread",
    "_current_frames": "sys: the lines of all threads",
    "_exit": "os: the end of a process whose threads would hang it",
    "_fields": "named tuples, documented",
    "_find_and_load": "importlib: what is being imported",
    "_getframe": "sys: the line of a caller",
    "_io": "Python's files",
    "_operator": "Python's operators",
    "_replace": "named tuples, documented",
    "_run_exitfuncs": "atexit: the end of a process whose threads would hang it",
    "_saved_": "nodes of autograd: the prefix of what they have saved, documented",
    "_thread": "Python's threads",
    # threading; SimpleElasticAgent's method of this name is listed.
    "_shutdown": "threading: the end of a process whose threads would hang it",
    "_lru_list_elem": "functools: the links of a cache",
    "_bit_generator": "numpy.random.RandomState: the source of its numbers",
    "_isinstance": "the name of a function of torch.jit, which a recording only compares",
    "_extra_state": "the key of Module.get_extra_state in a state dict, documented",
    "_ns": "the end of a name in a report",
    "_v2": "the end of a name of NVML",
    "_anyrig_module": "anyrig: the module that a replica mirrors",
    "_engine": "anyrig: spread modules",
    "_reduces_now": "anyrig: sharded layers",
}
# Text about the programs of users; `migration` imports no PyTorch.
TEXTS_OF_MIGRATION = ("torch._six.", "torch._C.set_grad_enabled")


def is_listed(use: str, room: str) -> bool:
    """Return whether `use` is a name in the list of `room`, on the way to one, or public in one."""
    last = use.rpartition(".")[2]
    if use.startswith(".") or (not use.startswith(("torch.", "torch/")) and "/" not in use):
        return last in OTHERS or use.partition(".")[0] in OTHERS or last in last_names(room)
    return use in ways_to_names(room) or any(
        use.startswith(f"{name}.") and not has_private(use[len(name) :]) for name in values_of(room)
    )


def has_private(path: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in path.split("."))


def names_of(room: str) -> tuple[PrivateName, ...]:
    return ROOMS.get(room, ())


@cache
def last_names(room: str) -> frozenset[str]:
    return frozenset(one.name.rpartition(".")[2] for one in names_of(room))


@cache
def ways_to_names(room: str) -> frozenset[str]:
    names = (one.name.split(".") for one in names_of(room) if "/" not in one.name)
    ways = {".".join(parts[: end + 1]) for parts in names for end in range(len(parts))}
    return frozenset(ways | {one.name for one in names_of(room)})


@cache
def values_of(room: str) -> frozenset[str]:
    """Return the listed names whose own attributes may be used: all but modules."""
    return frozenset(one.name for one in names_of(room) if one.name not in sys.modules)


def unlisted(uses: Iterator[Use]) -> dict[str, list[str]]:
    """Return the names that no list has, with their lines."""
    found: dict[str, list[str]] = {}
    for use in uses:
        room = use.file.partition("/")[0]
        if room == "private_names":
            continue
        if room == "migration" and use.name.startswith(TEXTS_OF_MIGRATION):
            continue
        if not is_listed(use.name, room):
            found.setdefault(use.name, []).append(f"{use.file}:{use.line}")
    return found


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    return list(uses_in_package(PACKAGE))


def test_every_private_name_is_listed(uses: list[Use]) -> None:
    """Add a name that fails here to `private_names/rooms`, with what breaks without it."""
    assert unlisted(iter(uses)) == {}


def test_every_listed_name_is_used_in_its_room(uses: list[Use]) -> None:
    used = {(use.file.partition("/")[0], part) for use in uses for part in parts_of(use.name)}
    unused = {
        room: stale
        for room, names in ROOMS.items()
        if (stale := [one.name for one in names if not is_used(one, room, used)])
    }
    assert unused == {}


def parts_of(name: str) -> set[str]:
    return {name, name.rpartition(".")[2]} | {
        name[:end] for end, letter in enumerate(name) if letter == "." and end
    }


def is_used(one: PrivateName, room: str, used: set[tuple[str, str]]) -> bool:
    if one.header or one.name == "torch._C._rpc_init":
        return True  # a member of a C++ class, or used by the lists themselves
    return (room, one.name) in used or (room, one.name.rpartition(".")[2]) in used


@pytest.mark.parametrize("room", ROOMS)
def test_every_listed_name_exists(room: str) -> None:
    assert missing_in_room(room).missing == ()
    assert all(one.breaks for one in ROOMS[room])


@pytest.mark.parametrize("room", ROOMS)
def test_each_name_is_listed_once_in_order(room: str) -> None:
    names = [one.name for one in ROOMS[room] if "/" not in one.name and not one.header]
    assert names == sorted(set(names))


# Uses that no list has, and the name under which each is found.
PLANTED = {
    "from torch import _C as c\nc._planted_a()": "torch._C._planted_a",
    "from torch import _C as c\nc.planted_b()": "torch._C.planted_b",
    "import torch._planted_c as d\nd.run()": "torch._planted_c.run",
    "import torch\nx = getattr(torch._C, '_planted_d', None)": "torch._C._planted_d",
    "def f(reducer):\n    reducer._planted_e()": "._planted_e",
    "def f(model):\n    return getattr(model, '_planted_f')": "._planted_f",
    "def f(model):\n    return model.layer.state()._planted_g.fields": "._planted_g",
    "from importlib import import_module\nimport_module('torch._C._planted_h').run": (
        "torch._C._planted_h.run"
    ),
    "from torch.nn.modules.module import _planted_i": "torch.nn.modules.module._planted_i",
    "def f(model):\n    model.__dict__['_planted_j'] = 1": "._planted_j",
    "def f(model):\n    return vars(model).get('_planted_k')": "._planted_k",
    "import torch\ncore = torch._C\ndef f():\n    inner = core\n    inner.planted_l()": (
        "torch._C.planted_l"
    ),
    "import torch.cuda\nsetattr(torch.cuda, '_planted_m', None)": "torch.cuda._planted_m",
    "import torch.cuda\ntorch.cuda._planted_n = None": "torch.cuda._planted_n",
    "import torch.nn as nn\nclass Layer(nn.Module):\n    def f(self):\n"
    "        self._state_dict_hooks": "._state_dict_hooks",
    "import torch.nn as nn\nclass Layer(nn.Module):\n"
    "    def _replicate_for_data_parallel(self):\n        pass": "._replicate_for_data_parallel",
    "import sys\nx = sys.modules['torch._planted_o'].run": "torch._planted_o.run",
    "CODE = 'import torch; torch._planted_p.run()'": "torch._planted_p.run",
    "def f(model):\n    return hasattr(model, '_planted_q')": "._planted_q",
    "from operator import attrgetter\nf = attrgetter('_planted_r')": "._planted_r",
    "import torch\nx = torch.ops.aten._planted_s.default": "torch.ops.aten._planted_s.default",
    "def f(tensor):\n    return tensor._cdata": "._cdata",  # listed, but for another room
}
PLANTED_IN_CPP = {
    "#include <torch/csrc/planted_t.h>": "torch/csrc/planted_t.h",
    "#include <ATen/native/planted_u.h>": "ATen/native/planted_u.h",
    '#include "c10/util/planted_v.h"': "c10/util/planted_v.h",
    "#include <ATen/ops/add_native.h>": "ATen/ops/add_native.h",
    'void f(py::object o) { o.attr("_planted_w")(); }': "._planted_w",
    'void f() { py::module_::import("torch._planted_x"); }': "torch._planted_x",
}


def test_uses_of_every_form_are_found(tmp_path: Path) -> None:
    """A copy of anyrig with one more file for each use: all are found, and nothing else."""
    copy = tmp_path / "anyrig"
    ignored = shutil.ignore_patterns("__pycache__", "*.js", "*.toml")
    shutil.copytree(PACKAGE, copy, ignore=ignored)
    expected = {}
    for number, (text, name) in enumerate((PLANTED | PLANTED_IN_CPP).items()):
        place = f"processes/planted_{number}.{'cpp' if text in PLANTED_IN_CPP else 'py'}"
        (copy / place).write_text(f"{text}\n")
        expected[name] = place
    found = unlisted(uses_in_package(copy))
    lines = {name: places[0].partition(":")[0] for name, places in found.items()}
    assert {name: lines.get(name) for name in expected} == expected
    ways = {name for name in lines if any(each.startswith(f"{name}.") for each in expected)}
    assert lines.keys() == expected.keys() | ways
