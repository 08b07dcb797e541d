"""Who imports what, from the source alone: nothing is run, so nothing can hide.

An import inside a function or under TYPE_CHECKING counts like any other.
"""

import ast
from collections.abc import Iterable, Mapping

import grimp

Graph = Mapping[str, frozenset[str]]
"""By module: the modules it imports, those of the tree and the packages of all others."""


def graph_of(*packages: str) -> Graph:
    """What each module of these packages imports."""
    found = grimp.build_graph(*packages, include_external_packages=True, cache_dir=None)
    return {
        name: frozenset(found.find_modules_directly_imported_by(name))
        for name in found.modules
        if not found.is_module_squashed(name)
    }


def entry_of(module: str, entries: Iterable[str]) -> str | None:
    """The longest listed name that is the module or encloses it."""
    fitting = [e for e in entries if module == e or module.startswith(f"{e}.")]
    return max(fitting, key=len, default=None)


def intruders(graph: Graph, thing: str, doors: Iterable[str]) -> list[str]:
    """Modules outside of the doors that import the thing or something in it."""
    doors = tuple(doors)
    return sorted(
        f"{module} -> {other}"
        for module, imported in graph.items()
        if entry_of(module, doors) is None
        for other in imported
        if other == thing or other.startswith(f"{thing}.")
    )


def unused_doors(graph: Graph, thing: str, doors: Iterable[str]) -> list[str]:
    """Doors through which nothing comes: a line of the table that is out of date."""
    return sorted(
        door
        for door in doors
        if not any(
            entry_of(module, [door])
            and any(o == thing or o.startswith(f"{thing}.") for o in imported)
            for module, imported in graph.items()
        )
    )


def clock_calls(source: str) -> list[str]:
    """`datetime.now()` and the like: readings of the clock that need no import of `time`."""
    names = {"now", "utcnow", "today"}
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value).rpartition(".")[2] in ("datetime", "date")
    ]
