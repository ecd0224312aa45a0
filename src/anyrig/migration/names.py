"""What dotted names mean, by the imports of a file: ``nn.Linear`` is ``torch.nn.Linear``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from .scopes import Scopes

# Names that PyTorch has in several places, and the one that rules use.
_SAME = {
    "torch.autograd.variable.Variable": "torch.autograd.Variable",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.utils.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.serialization.load": "torch.load",
    "torch.serialization.save": "torch.save",
}
# What ``from module import *`` is assumed to bring.
_STARS = {
    "torch.autograd": ("Variable",),
    "torch.nn": ("DataParallel", "Module", "Parameter", "Linear", "CrossEntropyLoss"),
    "torch.utils.data": ("DataLoader", "Dataset"),
}


class Names:
    """The imports of a file.

    Attributes:
        imported: the dotted name behind each name that an import binds.
        references: the dotted name of each expression that an import reaches.
    """

    def __init__(
        self,
        scopes: Scopes,
        parents: Mapping[ast.AST, ast.AST],
        by_type: Mapping[type[ast.AST], list[ast.AST]],
    ) -> None:
        self._scopes = scopes
        self.imported: dict[str, str] = {}
        for node in by_type.get(ast.Import, ()):
            assert isinstance(node, ast.Import)
            for alias in node.names:
                if alias.asname:
                    self.imported[alias.asname] = alias.name
                else:
                    root = alias.name.split(".")[0]
                    self.imported[root] = root
        for node in by_type.get(ast.ImportFrom, ()):
            assert isinstance(node, ast.ImportFrom)
            if node.level or node.module is None:
                continue
            for alias in node.names:
                if alias.name == "*":
                    for name in _STARS.get(node.module, ()):
                        self.imported.setdefault(name, f"{node.module}.{name}")
                else:
                    self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

        self.references = self._find_references(parents, by_type)

    def dotted(self, node: ast.AST) -> str | None:
        """Return the full name of an expression such as ``nn.Linear``, or None.

        None also if the program binds the name to something else in the same scope.
        """
        return self.references.get(node)

    def _find_references(
        self, parents: Mapping[ast.AST, ast.AST], by_type: Mapping[type[ast.AST], list[ast.AST]]
    ) -> dict[ast.AST, str]:
        found: dict[ast.AST, str] = {}
        for name in by_type.get(ast.Name, ()):
            assert isinstance(name, ast.Name)
            text = self.imported.get(name.id)
            if text is None:
                continue
            if any(binding.how != "import" for binding in self._scopes.bindings(name)):
                continue
            node: ast.AST = name
            found[node] = _SAME.get(text, text)
            parent = parents.get(node)
            while isinstance(parent, ast.Attribute):
                text = f"{text}.{parent.attr}"
                node, parent = parent, parents.get(parent)
                found[node] = _SAME.get(text, text)
        return found
