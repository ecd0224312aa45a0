"""Imports of Python 2 in packages, which depend on the files beside them."""

from pathlib import Path

import pytest
from checked_texts import found

from anyrig.migration.project import check_files, rewrite_files
from anyrig.migration.rules.every import RULES


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of models, and a script beside one of them."""
    models = tmp_path / "models"
    (models / "parts").mkdir(parents=True)
    for name in ("parts/__init__.py", "vgg.py", "logging.py", "torch.py", "models.py", "tools.py"):
        (models / name).touch()
    (tmp_path / "tools.py").touch()
    (models / "train.py").write_text("import torch\nfrom vgg import VGG\n")
    return models


def test_a_package_imports_its_modules(package: Path) -> None:
    file = package / "__init__.py"
    others = ["logging", "torch", "models", "tools", ".vgg", "missing"]
    rest = [f"from {name} import C" for name in others]
    start = ["from vgg import *", "from parts.a import (A,", "                     B)"]
    file.write_text("\n".join([*start, *rest]))
    (report,) = check_files([file], RULES)
    assert [(each.code, each.line) for each in report.findings] == [("ARC007", 1), ("ARC007", 2)]
    (report,) = rewrite_files([file], RULES, allow_unsafe=True, write=True)
    assert report.findings == ()
    fixed = ["from .vgg import *", "from .parts.a import (A,", start[2]]
    assert file.read_text().splitlines() == [*fixed, *rest]


def test_a_script_imports_what_is_beside_it(package: Path) -> None:
    (report,) = check_files([package / "train.py"], RULES)
    assert report.findings == ()


@pytest.mark.parametrize(
    "program",
    [
        "try:\n    from resnet import A\nexcept ImportError:\n    from .resnet import A\n",
        "import sys\nif sys.version_info[0] == 2:\n    from resnet import A\n",
        "import sys\nsys.path.append('models')\nfrom resnet import A\n",
        "import resnet.a\n",
    ],
)
def test_nothing_is_found(program: str) -> None:
    assert found(program, "ARC007") == []
