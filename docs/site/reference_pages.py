"""The pages of the reference: the public names of each package, which mkdocstrings describes."""

from __future__ import annotations

import ast
from pathlib import Path

# In the order of the navigation. Of a module, every public name is shown.
PACKAGES = (
    *("anyrig", "anyrig.devices", "anyrig.transfer", "anyrig.parallel", "anyrig.memory"),
    *("anyrig.checkpoint", "anyrig.rehearsal", "anyrig.virtual", "anyrig.hazards"),
    "anyrig.verification",
)
MODULES = ("anyrig.errors", "anyrig.units")


def public_names(package: str, path: Path) -> dict[str, str]:
    """Return the public names of a package, each with the name under which it is defined."""
    exported = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level and node.module
    ]
    found = {}
    for node in exported:
        origin = ".".join(
            [*package.split(".")[: len(package.split(".")) - node.level + 1], node.module]
        )
        for alias in node.names:
            if alias.asname == alias.name or path.parent.name == "transfer":
                found[alias.name] = f"{origin}.{alias.name}"
    return dict(sorted(found.items(), key=lambda item: item[0].casefold()))


def reference_pages(sources: Path) -> dict[str, str]:
    """Return the text of each page of the reference, by its place on the site."""
    pages = {}
    for package in PACKAGES:
        path = sources.joinpath(*package.split("."), "__init__.py")
        described = ast.get_docstring(ast.parse(path.read_text())) or ""
        text = [f"# {package}", described.replace("::\n", "\n")]
        text += [f"::: {place}" for place in public_names(package, path).values()]
        pages[f"reference/{package}.md"] = "\n\n".join(text) + "\n"
    for module in MODULES:
        options = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false"
        pages[f"reference/{module}.md"] = f"# {module}\n\n::: {module}\n{options}\n"
    return pages
