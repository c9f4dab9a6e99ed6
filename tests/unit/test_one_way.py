"""There is one way to take a place and one to give it back, and no framework in between.

What the code looks like, where behaviour alone could not show that it is so everywhere.
"""

import ast
import inspect
from functools import cache
from pathlib import Path

import proxy

ROOT = Path(inspect.getfile(proxy)).parent


@cache
def trees() -> dict[str, ast.Module]:
    """The package's modules, by their path in it."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


@cache
def calls() -> dict[str, set[str]]:
    """Which methods of what serves call `<of>.<method>(...)`, by `of.method`."""
    found: dict[str, set[str]] = {}
    serving = (tree for path, tree in trees().items() if not path.startswith(("sim/", "tools/")))
    for tree in serving:
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for function in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
                for called in filter(None, map(_called, ast.walk(function))):
                    found.setdefault(called, set()).add(f"{owner.name}.{function.name}")
    return found


def _called(node: ast.AST) -> str | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    of = node.func.value
    name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
    return f"{name}.{node.func.attr}"


def test_there_is_one_place_where_a_place_is_taken() -> None:
    """A lease is taken in one method; given back in two, called at an end or to wait for another.

    Avarok-Cybersecurity/atlas#368: one line that counted up, seven that counted down.
    """
    assert calls()["in_flight.take"] == {"Dispatcher._place"}
    assert calls()["in_flight.give_back"] == {"Dispatcher.end", "Dispatcher.retry"}
    assert calls()["dispatcher.end"] == {"Relay._finish", "Relay._give_back"}
    assert calls()["dispatcher.retry"] == {"Relay._ask_other"}
    assert calls()["dispatcher.arrive"] == {"Relay._ask"}


def test_no_framework_stands_between_client_and_engine() -> None:
    """What moves bytes and what decides imports no ASGI, whose middleware could cancel its work.

    Kludex/starlette#1438: a client that left early cancelled what ran behind a middleware.
    """
    for path, tree in trees().items():
        if path.startswith(("data/", "core/")):
            names = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported(node)}
            assert names.isdisjoint({"starlette", "fastapi", "uvicorn", "anyio"}), path


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
