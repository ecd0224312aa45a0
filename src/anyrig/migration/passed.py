"""What the calls in a file pass for a parameter of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .program import Program
from .rewrite import keyword


def passed_values(program: Program, parameter: ast.Name) -> list[ast.expr]:
    """Return what the calls of a function in this file pass for one of its parameters.

    The result is empty if the name is not a parameter, or is bound to something else, too. A method
    is known by its name alone.
    """
    function = program.scopes.home(parameter)
    how = [binding.how for binding in program.scopes.bindings(parameter)]
    if not isinstance(function, ast.FunctionDef) or how != ["parameter"]:
        return []
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(program.parents[function], ast.ClassDef)
    place = names.index(parameter.id) - is_method if parameter.id in names else -1
    found = []
    for call in _calls(program, function, is_method):
        named = keyword(call, parameter.id)
        if named is not None:
            found.append(named.value)
        elif 0 <= place < len(call.args):
            found.append(call.args[place])
    return found


def _calls(program: Program, function: ast.FunctionDef, is_method: bool) -> Iterable[ast.Call]:
    if is_method:
        calls = program.method_calls.get(function.name, [])
        return [each for each in calls if program.names.dotted(each.func) is None]
    return [
        call
        for call in program.all(ast.Call)
        if isinstance(call.func, ast.Name) and call.func.id == function.name
    ]
