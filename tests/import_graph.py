"""The import graph of a package, read from its source: which room a module lies in, and what each file imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "vitrail"
FLOOR = {
    "errors": 0, "markup": 0, "text": 0, "untrusted": 0,
    "checksums": 1, "plugins": 1, "rows": 1, "torch_private": 1,
    "files": 2, "hub": 2, "images": 2, "stamps": 2,
    "shards": 3, "tables": 3,
    "models": 4, "data": 4, "runtime": 4, "shared_work": 4,
    "tasks": 5, "config": 5,
    "objectives": 6, "analysis": 6, "weights": 6, "exports": 6, "runs": 6,
    "inference": 7,
    "evaluation": 8,
    "reports": 9,
    "training": 10, "serving": 10,
    "studies": 11,
    "verbs": 12,
    "cli": 13,
    "__init__": 14, "__main__": 14,
}  # fmt: skip


def files(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def module(package: Path, file: Path) -> tuple[str, ...]:
    """``vitrail/images/decode.py`` -> ``("vitrail", "data", "decode")``."""
    return (package.name, *file.relative_to(package).with_suffix("").parts)


@functools.cache
def imports(package: Path, file: Path) -> tuple[str, ...]:
    """Every module that a file imports, at the top, inside a function, for types or by ``import_module("...")``."""
    return tuple(_read_imports(package, file))


def _read_imports(package: Path, file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                start = module(package, file)[: -level or None] if level else ()
                origin = ".".join([*start, *([base] if base else [])])
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def room(package: Path, dotted: str) -> str | None:
    """The room that a module of the package lies in; what the package itself exports belongs to ``__init__``."""
    first, *rest = dotted.split(".")
    if first != package.name:
        return None
    is_room = rest and ((package / rest[0]).is_dir() or (package / f"{rest[0]}.py").is_file())
    return rest[0] if is_room else "__init__"


def climbs(package: Path) -> list[str]:
    """The imports that do not go down."""
    found = []
    for file in files(package):
        own = module(package, file)[1]
        targets = {room(package, name) for name in imports(package, file)} - {None, own}
        found += [
            f"{file.relative_to(package)} ({own}, floor {FLOOR[own]}) imports {target} (floor {FLOOR[target]})"
            for target in sorted(targets)
            if FLOOR[target] >= FLOOR[own]
        ]
    return found


def modules(package: Path) -> dict[str, set[str]]:
    """Every module of the package, and the modules of the package that it imports; a name of a module counts for that module."""
    names = {".".join(module(package, file)).removesuffix(".__init__"): file for file in files(package)}

    def home(dotted: str) -> str | None:
        parts = dotted.split(".")
        return next((name for end in range(len(parts), 1, -1) if (name := ".".join(parts[:end])) in names), None)

    # what a package's own __init__ names for others counts as that package
    return {
        name: {target for dotted in imports(package, file) if (target := home(dotted)) is not None} - {name}
        for name, file in names.items()
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import one another, directly or by way of others."""
    sorter, found = TopologicalSorter(graph), []
    try:
        sorter.prepare()
    except CycleError as error:
        found.append(error.args[1])
    return found


def height(graph: dict[str, set[str]]) -> int:
    """How many floors a graph without circles has: the modules on its longest way down."""
    floors: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        floors[name] = 1 + max((floors[target] for target in graph.get(name, ())), default=0)
    return max(floors.values(), default=0)


def rooms(package: Path) -> dict[str, dict[str, set[str]]]:
    """The graph of imports inside of each folder of the package; what an ``__init__`` gathers for others is no floor."""
    inside: dict[str, dict[str, set[str]]] = {}
    graph = modules(package)
    for name in graph:
        if (package / name.split(".")[1]).is_dir() and name.count(".") > 1 if "." in name else False:
            inside.setdefault(name.split(".")[1], {})[name] = set()
    for members in inside.values():
        for name in members:
            members[name] = graph[name] & members.keys()
    return inside


def shares(package: Path) -> dict[str, float]:
    """The part of the package's lines that each folder holds."""
    counts: dict[str, int] = {}
    for file in files(package):
        own = module(package, file)[1]
        counts[own] = counts.get(own, 0) + len(file.read_text().splitlines())
    return {own: count / sum(counts.values()) for own, count in counts.items()}
