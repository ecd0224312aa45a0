"""Files import each other in one direction and keep no state; `parallel` and `processes` walk trees
in one way.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "anyrig"

# What makes something that changes. Tables of constants are written with their contents.
MAKES_STATE = {
    *("dict", "list", "set", "deque", "defaultdict", "Counter", "OrderedDict", "count"),
    *("WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "local", "Lock", "RLock"),
    "ContextVar",
}
# State that a module keeps, and why it cannot be passed.
KEPT = {
    "devices/nvml_session.py: _sessions": "a process opens NVML once for all threads",
    "devices/cuda_start.py: _watching": "a process starts CUDA once",
    "devices/cuda_start.py: _watched": "what started it",
    "devices/lease.py: _lock": "guards the next two, also during a fork",
    "devices/lease.py: _held": "locks of files belong to a process, not to who asks for them",
    "devices/lease.py: _choosing": "descriptors that a forked child must close",
    "devices/lease.py: _this_thread": "a thread may choose while it chooses",
    "memory/module_stack.py: _running": "modules call their layers with no argument of ours",
    "parallel/engines/replicas/meeting.py: _current": "layers are called without arguments of ours",
    "parallel/losses/means_of_parts.py: _current": "PyTorch's functions have no argument of ours",
    "processes/group/membership.py: _contexts": "the one context of each process group",
    "processes/group/membership.py: _numbers": "names in the store are never given twice",
    "processes/torch_faults.py: _kept": "for a fault of PyTorch, see the file",
    "virtual/installed.py: _lock": "guards the next two",
    "virtual/installed.py: _installation": "a process has one rig, which PyTorch keeps for good",
    "virtual/installed.py: _inheritance": "what its children get",
}
# Functions that call themselves, and why they are not `transfer.tree`'s walk.
OWN_WALKS = {
    "parallel/parts/call.py: _note_forms": "notes the lengths of lists, empty ones too",
    "parallel/engines/pipeline/split/caches.py: _holds": "over what the garbage collector lists",
    "parallel/engines/pipeline/split/operations.py: fill": "recorded arguments and nodes",
    "parallel/engines/pipeline/split/recorded_facts.py: _frozen": "to compare objects",
    "parallel/engines/fsdp.py: _repeated": "over modules",
    "parallel/engines/pipeline/over_ranks/contents.py: write": "writes the structure as JSON",
    "parallel/engines/pipeline/over_ranks/contents.py: read": "reads it",
    "parallel/ranks/metrics/gather.py: join": "over the values of all ranks at once",
    "parallel/losses/criterions.py: name_of": "over functools.partial",
    "parallel/engines/replicas/mirror.py: translate": "over attributes of modules",
    "processes/checked_json.py: _read": "over the annotations of dataclasses",
}


def module_names() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if path.name != "__init__.py":
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            found[".".join(("anyrig", *parts))] = path
    return found


def imports_of(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of anyrig that a file imports, anywhere, also for the type checker alone."""
    package = name.split(".")[:-1]
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            stem = ".".join([*base, node.module] if node.module else base)
            found |= {stem, *(f"{stem}.{alias.name}" for alias in node.names)}
    return (found & known.keys()) - {name}


def cycle_in(imports: dict[str, set[str]]) -> list[str]:
    """One cycle, or nothing."""
    done: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for other in sorted(imports[name]):
            found = follow(other, [*way, name])
            if found:
                return found
        done.add(name)
        return []

    return next((found for name in sorted(imports) if (found := follow(name, []))), [])


def test_imports_for_the_type_checker_count(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("if TYPE_CHECKING:\n    from .text import describe\n")
    known = {"anyrig.memory.text": file}
    assert imports_of("anyrig.memory.a", file, known) == {"anyrig.memory.text"}


def test_no_file_imports_one_that_imports_it() -> None:
    known = module_names()
    assert cycle_in({name: imports_of(name, path, known) for name, path in known.items()}) == []


@pytest.mark.parametrize(
    ("imports", "cycle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
    ],
)
def test_a_cycle_is_found(imports: dict[str, set[str]], cycle: list[str]) -> None:
    assert cycle_in(imports) == cycle


def state_of(source: str) -> Iterator[str]:
    """Names at the top of a file that hold something that changes."""
    tree = ast.parse(source)
    for node in tree.body:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(value, ast.Call):
            made = value.func.attr if isinstance(value.func, ast.Attribute) else value.func
            changes = (made if isinstance(made, str) else getattr(made, "id", "")) in MAKES_STATE
        else:
            changes = isinstance(value, (ast.Dict, ast.List)) and ast.unparse(value) in ("{}", "[]")
        if changes:
            yield from (ast.unparse(target) for target in targets if target is not None)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def test_no_file_keeps_state_of_its_own() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in state_of(path.read_text())
        if name != "__all__"
    }
    assert found == KEPT.keys()


def test_state_is_found() -> None:
    source = "a = {}\nb: list[int] = []\nc = weakref.WeakSet()\nD = {'x': 1}\nE = ('x',)\n"
    assert [*state_of(source + "def f():\n    global g\n    g = 1\n")] == ["a", "b", "c", "g"]


def recursions_of(source: str) -> Iterator[str]:
    """Functions of a file that call themselves, by name or as a method."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            calls = {
                ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)
            }
            if calls & {node.name, f"self.{node.name}", f"cls.{node.name}"}:
                yield node.name


def test_nested_structures_are_walked_in_one_way() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for room in ("parallel", "processes")
        for path in (PACKAGE / room).rglob("*.py")
        for name in recursions_of(path.read_text())
    }
    assert found == OWN_WALKS.keys()


def test_a_walk_is_found() -> None:
    source = "def a(x):\n    return [a(y) for y in x]\n\ndef b(x):\n    return a(x)\n"
    assert [*recursions_of(source)] == ["a"]


# Modules of `parallel` that compute within a spread model, or beside it.
OTHER_MODULES = {
    "parallel/engines/pipeline/split/part.py: Part": "the operations of a stage",
    "parallel/losses/parallel_loss.py: ParallelLoss": "takes what `scattered` returns",
}


def modules_of(source: str) -> Iterator[str]:
    """Classes of a file that derive from `torch.nn.Module`, or from a spread module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & {"Module", "SpreadModule"}:
                yield node.name


def test_every_plan_returns_one_class_of_module() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in (PACKAGE / "parallel").rglob("*.py")
        for name in modules_of(path.read_text())
    }
    assert found == {"parallel/spread_module.py: SpreadModule", *OTHER_MODULES}


# Nodes of the graph that `parallel` adds; no two do the same.
NODES_OF_THE_GRAPH = {
    "losses/delivery.py: _Node": "gradients that were computed earlier",
    "ranks/whole_loss.py: _WholeLoss": "the loss of a global batch",
    "ranks/inputs.py: _Input": "gradients of inputs over ranks",
    "ranks/metrics/gradients.py: _SumGradients": "gradients of values gathered over ranks",
    "parts/cut.py: _Cut": "a batch to its parts",
    "parts/cut.py: _Join": "parts of an output to the output",
    "engines/replicas/kept_tensors.py: _OfOnePart": "what a module kept of one part",
    "engines/replicas/gradients.py: _Take": "gradients of a bucket, packed on a device",
    "engines/replicas/gradients.py: _Collect": "packed gradients, added",
    "engines/replicas/gradients.py: _Deliver": "added gradients, unpacked for the parameters",
    "engines/pipeline/graph_mailbox.py: _Leave": "tensors that leave a stage",
    "engines/pipeline/graph_mailbox.py: _Enter": "tensors that enter a stage",
    "engines/pipeline/held_tensors.py: _Lend": "a tensor that several stages hold",
    "engines/pipeline/stage.py: _Open": "the inputs of a stage",
    "engines/pipeline/weight_gradients.py: _LinearMap": "deferred gradients of a weight",
    "engines/pipeline/weight_gradients.py: _Catch": "what they are computed from",
}


def test_every_node_of_the_graph_is_known() -> None:
    found = {
        f"{path.relative_to(PACKAGE / 'parallel').as_posix()}: {node.name}"
        for path in (PACKAGE / "parallel").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        if any(ast.unparse(base) == "torch.autograd.Function" for base in node.bases)
    }
    assert found == NODES_OF_THE_GRAPH.keys()
