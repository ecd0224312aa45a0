"""Check a text, and rewrite it until no fix is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .edit import Fix, apply_edits, choose_compatible
from .finding import Finding, Hit
from .lines import Lines
from .noqa import Noqa
from .reading import Reading, may_matter, parse, read_program
from .rule import Rule
from .source_file import SourceFile

_MOST_ROUNDS = 12


@dataclass(frozen=True)
class Rewriting:
    """The result of rewriting a file.

    Attributes:
        source: the file as it was.
        text: the text afterwards; the old text if nothing was changed.
        fixed: how many findings were fixed.
        problem: why the fixes could not be applied; None if there was no problem.
    """

    source: SourceFile
    text: str
    fixed: int
    problem: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the text differs from that of the file."""
        return self.text != self.source.text


def check_source(source: SourceFile, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    """Return what the rules find in a file, in the order of the text.

    Raises:
        SyntaxError: the text parses neither as Python 3 nor as Python 2.
    """
    if not may_matter(source.text, source.siblings):
        return ()
    reading = _read(source, source.text, None)
    lines = Lines(source.text)
    found = [
        _finding(source, lines, reading, code, hit)
        for code, hit in _hits(reading, rules, source.text)
    ]
    return tuple(sorted(found, key=lambda each: (each.line, each.column, each.code)))


def rewrite_source(
    source: SourceFile, rules: Sequence[Rule], *, allow_unsafe: bool = False
) -> Rewriting:
    """Apply the fixes of the rules to a file's text repeatedly, until none is left.

    If the result does not parse, the text stays as it was, and `problem` says why.

    Args:
        source: the file, which is not written.
        rules: the rules whose fixes are applied.
        allow_unsafe: apply also fixes that may change what the program computes.

    Raises:
        SyntaxError: the text parses neither as Python 3 nor as Python 2.
    """
    if not may_matter(source.text, source.siblings):
        return Rewriting(source, source.text, 0)
    text, fixed, is_old = source.text, 0, None
    for _ in range(_MOST_ROUNDS):
        reading = _read(source, text, is_old)
        is_old = reading.program.is_old
        hits = list(_hits(reading, rules, text))
        if reading.edits:
            problem = _unrepaired(reading, hits, allow_unsafe)
            if problem is not None:
                return Rewriting(source, source.text, 0, problem)
            fixed += len(reading.repairs)
        fixes = [
            hit.fix
            for _, hit in sorted(hits, key=lambda each: (each[1].start, each[1].end))
            if hit.fix is not None and hit.fix.edits and (hit.fix.is_safe or allow_unsafe)
        ]
        chosen = choose_compatible(fixes)
        fixed += len(chosen)
        text = apply_edits(reading.program.text, {edit for fix in chosen for edit in fix.edits})
        try:
            parse(text)
        except SyntaxError as error:
            problem = f"the rewritten text would not parse: line {error.lineno}: {error.msg}"
            return Rewriting(source, source.text, 0, problem)
        if not chosen:
            break
    return Rewriting(source, text, fixed)


def _read(source: SourceFile, text: str, is_old: bool | None) -> Reading:
    is_package = source.path.name == "__init__.py"
    return read_program(text, is_package=is_package, is_old=is_old, siblings=source.siblings)


def _hits(reading: Reading, rules: Sequence[Rule], text: str) -> Iterator[tuple[str, Hit]]:
    """Yield what the rules find, unless a comment silences it, with the rule's code."""
    program, noqa, lines = reading.program, Noqa(text), Lines(text)
    codes = {rule.code for rule in rules}
    for repair in reading.repairs:
        if repair.code in codes and not noqa.silences(
            repair.code, lines.position(repair.start)[:1]
        ):
            # The program has these edits already: the fix itself is empty.
            yield (
                repair.code,
                Hit(repair.start, repair.end, repair.message, Fix((), repair.is_safe)),
            )
    for rule in rules:
        for hit in rule.find(program):
            first, last = program.position(hit.start)[0], program.position(hit.end)[0]
            if noqa.silences(rule.code, range(first, last + 1)):
                continue
            if hit.fix is not None and not hit.fix.keeps_comments(program.text):
                hit = replace(hit, fix=None)
            yield rule.code, hit


def _unrepaired(reading: Reading, hits: list[tuple[str, Hit]], allow_unsafe: bool) -> str | None:
    """Return why a text of Python 2 stays as it is, or None if all of it may be repaired."""
    repaired = {
        (code, hit.start)
        for code, hit in hits
        if hit.fix is not None and not hit.fix.edits and (hit.fix.is_safe or allow_unsafe)
    }
    left = [each for each in reading.repairs if (each.code, each.start) not in repaired]
    if not left:
        return None
    codes = ", ".join(sorted({each.code for each in left}))
    more = "" if allow_unsafe or all(each.is_safe for each in left) else ", with --unsafe-fixes"
    return f"it is Python 2, and cannot be rewritten without {codes}{more}"


def _finding(source: SourceFile, lines: Lines, reading: Reading, code: str, hit: Hit) -> Finding:
    program = reading.program
    if hit.fix is not None and not hit.fix.edits:  # a repair, placed in the text on the disk
        start, end = lines.position(hit.start), lines.position(hit.end)
    elif reading.edits:
        start = lines.position(reading.original(hit.start))
        end = lines.position(reading.original(hit.end))
    else:
        start, end = program.position(hit.start), program.position(hit.end)
    fix = None if hit.fix is None else "safe" if hit.fix.is_safe else "unsafe"
    return Finding(source.path, code, hit.message, *start, *end, fix)
