"""Write docs/rules from the rules. `make rules` runs this."""

from pathlib import Path

from anyrig.migration.explain import index_of, page_of
from anyrig.migration.rules.every import RULES

FOLDER = Path(__file__).parents[2] / "docs" / "rules"


def pages() -> dict[Path, str]:
    """The text of each page."""
    found = {FOLDER / f"{rule.code}.md": page_of(rule) for rule in RULES}
    return found | {FOLDER / "README.md": index_of(RULES)}


if __name__ == "__main__":
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for path, text in pages().items():
        path.write_text(text)
