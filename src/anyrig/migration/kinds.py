"""What an expression is, as far as its own file says: a tensor, a module, a loader.

A light type inference. Nothing is assumed about a value that comes from another file or a
parameter, except what the function itself shows: a value whose ``.backward()`` is called is a loss.

More than 400 lines: the functions for the forms of an expression call each other.
"""

from __future__ import annotations

import ast
from functools import cached_property

from .kind import Kind
from .scopes import Binding
from .torch_names import (
    COMPARISONS,
    FACTORIES,
    LOSS_FUNCTIONS,
    LOSSES,
    NOT_TENSOR_FUNCTIONS,
    NOT_TENSORS,
    OF_MODULES,
    REDUCTIONS,
    SAME_ELEMENTS,
    SAME_MODULE,
    TENSOR_TYPES,
    WHOLE_TYPES,
)
from .tree import Tree

_T = Kind.TENSOR
# The kind of a name that is just being looked up: it agrees with every other value of the name.
_ITSELF = ~Kind.UNKNOWN
_MOST_LOOKUPS = 20_000
_DEEPEST = 100


class Kinds:
    """The kinds of the expressions of one program."""

    def __init__(self, program: Tree) -> None:
        self._program = program
        self._names = program.names
        self._known: dict[object, Kind] = {}
        self._open: set[object] = set()
        self._lookups = 0
        self._depth = 0

    def of(self, node: ast.AST | None) -> Kind:
        """Return what is known of an expression."""
        if node is None:
            return Kind.UNKNOWN
        found = self._look_up(node)
        return Kind.UNKNOWN if found == _ITSELF else found

    def possible(self, node: ast.AST) -> Kind:
        """Return every kind that an expression has by at least one assignment of its name."""
        found = self.of(node)
        if isinstance(node, ast.Name):
            for binding in self._program.scopes.bindings(node):
                kind = self._of_binding(binding)
                found |= Kind.UNKNOWN if kind == _ITSELF else kind
            if (self._program.scopes.home(node), node.id) in self._module_names:
                found |= Kind.MODULE
        return found

    @cached_property
    def _module_names(self) -> set[tuple[ast.AST, str]]:
        """The names on which methods of modules are called, each with the scope that binds it."""
        home = self._program.scopes.home
        return {
            (home(call.func.value), call.func.value.id)
            for method in OF_MODULES
            for call in self._program.method_calls.get(method, ())
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        }

    def _look_up(self, node: ast.AST) -> Kind:
        known = self._known.get(node)
        if known is not None:
            return known
        if self._depth > _DEEPEST or self._lookups > _MOST_LOOKUPS:
            return Kind.UNKNOWN
        self._lookups += 1
        self._depth += 1
        try:
            found = self._find(node)
        finally:
            self._depth -= 1
        if found != _ITSELF:
            self._known[node] = found
        return found

    def _join(self, key: object, bindings: list[Binding]) -> Kind:
        """Return what all values of a name have in common."""
        known = self._known.get(key)
        if known is not None:
            return known
        if key in self._open:
            return _ITSELF
        self._open.add(key)
        try:
            # Adding something to a tensor in place does not change its kind.
            augments = [each for each in bindings if each.how == "augment"]
            kinds = [self._of_binding(each) for each in bindings if each.how != "augment"]
            if not any(_T in kind for kind in kinds):
                kinds += [self._of_binding(each) for each in augments]
        finally:
            self._open.discard(key)
        kinds = [kind for kind in kinds if kind != _ITSELF]
        found = kinds[0] if kinds else (_ITSELF if self._open and bindings else Kind.UNKNOWN)
        for kind in kinds[1:]:
            found = _either(found, kind)
        if found != _ITSELF:
            self._known[key] = found
        return found

    @cached_property
    def losses(self) -> set[tuple[ast.AST, str]]:
        """The names on which ``.backward()`` is called, each with its scope."""
        found = set()
        for call in self._program.method_calls.get("backward", ()):
            assert isinstance(call.func, ast.Attribute)
            target = call.func.value
            has_gradient = bool(call.args) or any(
                each.arg in ("gradient", "grad_tensors") for each in call.keywords
            )
            if isinstance(target, ast.Name) and not has_gradient:
                found.add((self._program.scopes.scope(target), target.id))
        return found

    @cached_property
    def modules(self) -> set[str]:
        """The classes of this file that derive from nn.Module, by name."""
        found: set[str] = set()
        classes = list(self._program.all(ast.ClassDef))
        grew = True
        while grew:
            grew = False
            for each in classes:
                if each.name in found:
                    continue
                for base in each.bases:
                    dotted = self._names.dotted(base) or ""
                    is_local = isinstance(base, ast.Name) and base.id in found
                    if is_local or (
                        dotted.startswith("torch.nn.") and dotted != "torch.nn.Parameter"
                    ):
                        found.add(each.name)
                        grew = True
                        break
        return found

    def _find(self, node: ast.AST) -> Kind:
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node)
        if isinstance(node, ast.Constant):
            is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
            return Kind.NUMBER if is_number else Kind.UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._of_operation(self._look_up(node.left), self._look_up(node.right))
        if isinstance(node, ast.UnaryOp):
            kind = self._look_up(node.operand)
            return kind if kind == _ITSELF else kind & ~(Kind.LEAF | Kind.FRESH)
        if isinstance(node, ast.Compare):
            sides = [self.of(node.left), *(self.of(each) for each in node.comparators)]
            is_elementwise = not isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
            if is_elementwise and any(_T in side for side in sides):
                scalar = Kind.SCALAR if all(_is_scalar(side) for side in sides) else _T
                return _T | Kind.MASK | scalar
            return Kind.UNKNOWN
        if isinstance(node, ast.Subscript):
            return self._of_subscript(node)
        if isinstance(node, ast.IfExp):
            return self.of(node.body) & self.of(node.orelse)
        return Kind.UNKNOWN

    def _of_name(self, node: ast.Name) -> Kind:
        scope = self._program.scopes.scope(node)
        bindings = self._program.scopes.bindings(node)
        found = self._join((scope, node.id), bindings)
        if (scope, node.id) in self.losses and Kind.NUMBER not in found:
            found |= _T | Kind.SCALAR | Kind.LOSS
            found &= ~Kind.FRESH
        return found

    def _of_binding(self, binding: Binding) -> Kind:
        value = binding.value
        if binding.how == "assign":
            if value is None:
                return Kind.UNKNOWN
            return self._part(value, binding.path)
        if binding.how == "augment":
            kind = self._look_up(value) if value is not None else Kind.UNKNOWN
            if kind == _ITSELF or Kind.NUMBER in kind:
                return _ITSELF
            return kind & ~(Kind.FRESH | Kind.LEAF) if _T in kind else Kind.UNKNOWN
        if binding.how == "loop" and value is not None:
            return self._of_loop(value, binding.path)
        return Kind.UNKNOWN

    def _of_loop(self, value: ast.expr, path: tuple[int, ...]) -> Kind:
        """Return the kind of a loop's variable, from what it iterates over."""
        while isinstance(value, ast.Call) and value.args:
            name = value.func.id if isinstance(value.func, ast.Name) else ""
            attribute = value.func.attr if isinstance(value.func, ast.Attribute) else ""
            if name == "enumerate":
                if path[:1] == (0,):
                    return Kind.NUMBER
                path = path[1:]
            elif "tqdm" not in (name or attribute):
                break
            value = value.args[0]
        if Kind.LOADER in self.of(value) or _is_loader_name(value):
            return Kind.BATCH | (_T | Kind.FRESH if path else Kind.UNKNOWN)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return Kind.NUMBER if value.func.id in ("range", "xrange") else Kind.UNKNOWN
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            is_module = value.func.attr == "parameters" and not path
            return _T | Kind.LEAF if is_module else Kind.UNKNOWN
        return Kind.UNKNOWN

    def _part(self, value: ast.expr, path: tuple[int, ...]) -> Kind:
        for place, index in enumerate(path):
            if isinstance(value, (ast.Tuple, ast.List)) and 0 <= index < len(value.elts):
                value = value.elts[index]
                continue
            return self._of_result(value, path[place:])
        return self._look_up(value)

    def _of_result(self, value: ast.expr, path: tuple[int, ...]) -> Kind:
        """Return the kind of a part of what a call returns, or of a part of a batch."""
        kind = self.of(value)
        if Kind.BATCH in kind:
            return Kind.BATCH | _T | Kind.FRESH
        if isinstance(value, ast.Call) and len(path) == 1:
            name = self._names.dotted(value.func) or ""
            method = value.func.attr if isinstance(value.func, ast.Attribute) else ""
            is_pair = name in ("torch.max", "torch.min", "torch.topk", "torch.sort", "torch.median")
            if is_pair or (
                method in ("max", "min", "topk", "sort") and self._is_tensor_method(value)
            ):
                return _T | (Kind.WHOLE if path[0] == 1 else Kind.UNKNOWN)
        return Kind.UNKNOWN

    def _is_tensor_method(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and _T in self.of(call.func.value)

    def _of_call(self, node: ast.Call) -> Kind:
        name = self._names.dotted(node.func)
        if name is not None and name.startswith("torch."):
            return self._of_torch(node, name.removeprefix("torch."))
        if name is not None and name.split(".")[0] == "torchvision" and ".models" in name:
            return Kind.MODULE
        if isinstance(node.func, ast.Name):
            if node.func.id in self.modules:
                return Kind.MODULE
            if node.func.id in ("len", "int", "float", "round"):
                return Kind.NUMBER
            if node.func.id == "next" and node.args and _is_parameters(node.args[0]):
                return _T | Kind.LEAF
        callee = self.of(node.func)
        if Kind.CRITERION in callee:
            return _T | Kind.LOSS | (Kind.PER_SAMPLE if Kind.BATCH in callee else Kind.SCALAR)
        if callee == _ITSELF:
            return Kind.UNKNOWN
        if callee & (Kind.MODULE | Kind.PARALLEL | Kind.DISTRIBUTED):
            return Kind.UNKNOWN  # a tensor, or a tuple of them, or anything
        if isinstance(node.func, ast.Attribute):
            return self._of_method(node, node.func)
        return Kind.UNKNOWN

    def _of_torch(self, node: ast.Call, name: str) -> Kind:
        room, _, last = name.rpartition(".")
        keywords = {each.arg: each.value for each in node.keywords}
        requires = keywords.get("requires_grad")
        leaf = Kind.LEAF if _is_true(requires) else Kind.UNKNOWN
        if room == "":
            if last in FACTORIES:
                is_one = (
                    last == "tensor" and bool(node.args) and isinstance(node.args[0], ast.Constant)
                )
                kind = _T | Kind.FRESH | leaf | (Kind.SCALAR if is_one else Kind.UNKNOWN)
                if last in ("multinomial", "randperm", "randint"):
                    kind |= Kind.WHOLE
                if last == "arange" and node.args and all(_is_whole(each) for each in node.args):
                    kind |= Kind.WHOLE
                return kind
            if last in TENSOR_TYPES or last == "Tensor":
                return _T | Kind.FRESH | (Kind.WHOLE if last in WHOLE_TYPES else Kind.UNKNOWN)
            if last in COMPARISONS:
                return _T | Kind.MASK
            if last in ("argmax", "argmin", "argsort"):
                return _T | Kind.WHOLE
            if last in REDUCTIONS:
                return self._reduced(node, node.args[1:])
            if last in NOT_TENSOR_FUNCTIONS or last.startswith(("is_", "set_", "get_")):
                return Kind.UNKNOWN
            return _T if last.islower() else Kind.UNKNOWN
        if room == "cuda" and last in TENSOR_TYPES:
            return _T | Kind.FRESH | (Kind.WHOLE if last in WHOLE_TYPES else Kind.UNKNOWN)
        if room == "autograd" and last == "Variable":
            inner = self._look_up(node.args[0]) if node.args else Kind.UNKNOWN
            kept = Kind.SCALAR | Kind.WHOLE | Kind.MASK | Kind.BATCH
            return inner if inner == _ITSELF else _T | Kind.FRESH | (inner & kept) | leaf
        if room == "nn.functional":
            if last not in LOSS_FUNCTIONS:
                return _T
            return _T | Kind.LOSS | (Kind.PER_SAMPLE if _is_unreduced(keywords) else Kind.SCALAR)
        if room == "nn":
            if last in LOSSES:
                mark = Kind.BATCH if _is_unreduced(keywords) else Kind.UNKNOWN
                return Kind.MODULE | Kind.CRITERION | mark
            if last == "DataParallel":
                return Kind.MODULE | Kind.PARALLEL
            if last == "Parameter":
                return _T | Kind.LEAF
            return Kind.MODULE if last[:1].isupper() else Kind.UNKNOWN
        if name == "nn.parallel.DistributedDataParallel":
            return Kind.MODULE | Kind.DISTRIBUTED
        if room == "optim" and last[:1].isupper():
            return Kind.OPTIMIZER
        if name == "utils.data.DataLoader":
            return Kind.LOADER
        if name == "utils.data.distributed.DistributedSampler":
            return Kind.SAMPLER
        return Kind.UNKNOWN

    def _of_method(self, node: ast.Call, function: ast.Attribute) -> Kind:
        method, base = function.attr, self._look_up(function.value)
        if base == _ITSELF:
            return base if method not in NOT_TENSORS and method != "item" else Kind.UNKNOWN
        if base & (Kind.MODULE | Kind.PARALLEL | Kind.DISTRIBUTED):
            return base if method in SAME_MODULE else Kind.UNKNOWN
        if method == "item":
            return Kind.NUMBER
        if _T not in base:
            return Kind.UNKNOWN
        if method in NOT_TENSORS and not (method == "type" and node.args):
            return Kind.NUMBER if method in ("size", "numel", "nelement", "dim") else Kind.UNKNOWN
        if method in COMPARISONS:
            return _T | Kind.MASK
        if method in ("argmax", "argmin", "argsort", "long", "int", "short", "byte", "char"):
            return _T | Kind.WHOLE | (base & Kind.SCALAR)
        if method in REDUCTIONS:
            return self._reduced(node, node.args) | (base & Kind.LOSS)
        if method in ("detach", "clone", "cpu", "cuda", "to", "float", "double", "half", "data"):
            kept = base & ~(Kind.LEAF | Kind.MASK)
            if method == "detach":
                kept &= ~Kind.LOSS
            if method in ("float", "double", "half", "to"):
                kept &= ~Kind.WHOLE
            return kept
        if method.endswith("_") and not method.startswith("_"):
            return base | (Kind.LEAF if method == "requires_grad_" else Kind.UNKNOWN)
        if method == "new" or method.startswith("new_"):
            return _T | Kind.FRESH
        keeps = base & (Kind.WHOLE | Kind.MASK) if method in SAME_ELEMENTS else Kind.UNKNOWN
        if method in ("view", "reshape", "squeeze", "unsqueeze", "t", "transpose", "permute"):
            keeps |= base & (Kind.FRESH | Kind.BATCH)
        if method in (
            "exp",
            "log",
            "sqrt",
            "abs",
            "neg",
            "clamp",
            "mul",
            "div",
            "add",
            "sub",
            "pow",
        ):
            keeps |= base & (Kind.SCALAR | Kind.LOSS)
        return _T | keeps

    def _reduced(self, node: ast.Call, dimensions: list[ast.expr]) -> Kind:
        has_dimension = bool(dimensions) or any(
            each.arg in ("dim", "axis", "keepdim") for each in node.keywords
        )
        return _T | (Kind.UNKNOWN if has_dimension else Kind.SCALAR)

    def _of_attribute(self, node: ast.Attribute) -> Kind:
        if node.attr in ("data", "grad"):
            kind = self.of(node.value)
            if _T in kind:
                kept = kind & (Kind.SCALAR | Kind.WHOLE | Kind.MASK | Kind.BATCH)
                return _T | kept | (Kind.FRESH if node.attr == "data" else Kind.UNKNOWN)
            return Kind.UNKNOWN
        if node.attr in ("weight", "bias") and Kind.MODULE in self.of(node.value):
            return _T | Kind.LEAF
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return self._join(node.attr, self._program.scopes.attributes.get(node.attr, []))
        return Kind.UNKNOWN

    def _of_subscript(self, node: ast.Subscript) -> Kind:
        kind = self.of(node.value)
        if Kind.BATCH in kind and _T not in kind:
            return Kind.BATCH | _T | Kind.FRESH
        if isinstance(node.value, ast.Call) and isinstance(node.slice, ast.Constant):
            part = node.slice.value
            if isinstance(part, int) and (found := self._of_result(node.value, (part,))):
                return found
        if _T in kind:
            return _T | (kind & (Kind.WHOLE | Kind.MASK))
        return Kind.UNKNOWN

    def _of_operation(self, left: Kind, right: Kind) -> Kind:
        if _ITSELF in (left, right):
            return left if right == _ITSELF else right
        if Kind.TENSOR not in left | right:
            return Kind.NUMBER if Kind.NUMBER in left and Kind.NUMBER in right else Kind.UNKNOWN
        found = _T | ((left | right) & Kind.LOSS)
        if _is_scalar(left) and _is_scalar(right):
            found |= Kind.SCALAR
        if Kind.WHOLE in left and (Kind.WHOLE in right or Kind.NUMBER in right):
            found |= Kind.WHOLE
        return found


def _either(one: Kind, other: Kind) -> Kind:
    """Return the kind of a name that has one of two values."""
    tensors = {Kind.NUMBER, Kind.UNKNOWN}
    if one in tensors and _T in other:
        return other & (_T | Kind.SCALAR | Kind.LOSS) if one is Kind.NUMBER else Kind.UNKNOWN
    if other in tensors and _T in one:
        return one & (_T | Kind.SCALAR | Kind.LOSS) if other is Kind.NUMBER else Kind.UNKNOWN
    shared = one & other
    return shared | ((one | other) & Kind.LOSS if _T in shared else Kind.UNKNOWN)


def _is_parameters(node: ast.expr) -> bool:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr == "parameters"  # type: ignore[attr-defined]


def _is_scalar(kind: Kind) -> bool:
    return Kind.SCALAR in kind or (Kind.NUMBER in kind and _T not in kind)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_whole(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_unreduced(keywords: dict[str | None, ast.expr]) -> bool:
    reduction, reduce = keywords.get("reduction"), keywords.get("reduce")
    return (isinstance(reduction, ast.Constant) and reduction.value == "none") or (
        isinstance(reduce, ast.Constant) and reduce.value is False
    )


def _is_loader_name(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return "loader" in name.lower()
