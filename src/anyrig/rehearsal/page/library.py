"""The charting library that draws the memory of a page: BokehJS, from the installed package bokeh.

bokeh is optional (`pip install 'anyrig[report]'`). Without it a page shows memory as a picture that
does not zoom.
"""

from __future__ import annotations

import base64
import importlib.util
import zlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """A charting library to put into a page.

    Attributes:
        name: its name and version.
        licence: the text that copies of it must carry.
        script: its source.
    """

    name: str
    licence: str
    script: str

    @property
    def compressed(self) -> str:
        """The script, compressed, in base64."""
        return base64.b64encode(zlib.compress(self.script.encode(), level=9)).decode()


def find_library() -> Library | None:
    """Return BokehJS, or None where bokeh is not installed."""
    spec = importlib.util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        return None
    import bokeh

    folder = Path(spec.origin).parent
    return Library(
        f"BokehJS {bokeh.__version__}",
        (folder / "LICENSE.txt").read_text(encoding="utf-8"),
        (folder / "server/static/js/bokeh.min.js").read_text(encoding="utf-8"),
    )
