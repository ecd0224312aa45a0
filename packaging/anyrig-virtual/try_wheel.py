"""Check the installed wheel with the installed PyTorch: its libraries load and compute.

With ``CXX=absent``, as in the configuration of cibuildwheel, nothing can be compiled instead.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from anyrig.virtual.build import build_extension
from anyrig.virtual.extras.driver.library import build_library
from anyrig.virtual.packaged_libraries import PACKAGE
from anyrig.virtual.trial import try_library

for library in (build_extension(), build_library()):
    if PACKAGE not in library.parts:
        sys.exit(f"{library} is not of the wheel")
try_library(build_extension())
print(f"anyrig-virtual {version('anyrig-virtual')} works with PyTorch {version('torch')}")
