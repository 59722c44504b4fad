"""The shape of the house: which room may import which, and what every file promises.

Run as a program it prints questions of size: long functions and files, large and high rooms. They are never a failure.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import (
    FLOOR,
    PACKAGE,
    circles,
    climbs,
    files,
    height,
    imports,
    module,
    modules,
    rooms,
    shares,
)

PEERS = {"torchvision", "cv2", "timm", "transformers"}
WORKERS = "data/workers.py"  # reads pickles, from the pipes of its own processes only
UNPICKLER = "weights/pickle_sandbox.py"  # the program of a process that holds nothing; `weights.pickled` starts it
MAY_UNPICKLE = {WORKERS: "pickle", UNPICKLER: "torch.load("}
BANNED = re.compile(r"TODO|FIXME|pickle\.loads?\b|torch\.load\(")
PRIVATE = re.compile(r"torch\.[\w.]*\b_[a-z]\w*|torch\.ops\.mkldnn|\b_cdata\b|_conv_forward")
MAY_BE_PRIVATE = "torch_private.py"
LONGEST_FILE, LONGEST_FUNCTION = 400, 40  # lines
LARGEST_ROOM, MAX_FLOORS = 0.15, 7  # share of all lines; modules on the longest chain of imports inside a room


def peers_imported(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)} imports {name}"
        for file in files(package)
        for name in imports(package, file)
        if name.split(".")[0] in PEERS
    ]


def is_config(node: ast.AST) -> bool:
    """A frozen, keyword-only dataclass."""
    decorators = node.decorator_list if isinstance(node, ast.ClassDef) else []
    return any(
        {"frozen=True", "kw_only=True"} <= {ast.unparse(word) for word in each.keywords}
        for each in decorators
        if isinstance(each, ast.Call)
    )


def reads(tree: ast.AST) -> Iterator[str]:
    """The attribute names that a piece of code reads; a check in ``__post_init__`` is no use of a value."""
    nodes = [tree]
    while nodes:
        match node := nodes.pop():
            case ast.FunctionDef(name="__post_init__"):
                continue
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "attrgetter"), args=args):
                yield from (
                    each.value for each in args if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
            case ast.MatchClass(kwd_attrs=names):
                yield from names
        nodes.extend(ast.iter_child_nodes(node))


def dead_fields(package: Path) -> list[str]:
    """The fields of configs that nothing in the package reads, the templates of pages included."""
    trees = {file: ast.parse(file.read_text()) for file in files(package)}
    used = set().union(*(reads(tree) for tree in trees.values()))
    used |= {name for file in package.rglob("templates/*") for name in re.findall(r"\.(\w+)", file.read_text())}
    return [
        f"{file.relative_to(package)}: {owner.name}.{field.target.id}"
        for file, tree in trees.items()
        for owner in ast.walk(tree)
        if is_config(owner)
        for field in owner.body
        if isinstance(field, ast.AnnAssign) and field.target.id not in used and "ClassVar" not in ast.unparse(field)
    ]


def banned_words(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file in files(package)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if BANNED.search(line) and MAY_UNPICKLE.get(str(file.relative_to(package)), "\n") not in line
    ]


def private_names(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file in files(package)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if PRIVATE.search(line) and str(file.relative_to(package)) != MAY_BE_PRIVATE
    ]


def long_files(package: Path) -> list[str]:
    counts = {file: len(file.read_text().splitlines()) for file in files(package)}
    return [f"{file.relative_to(package)}: {count} lines" for file, count in counts.items() if count > LONGEST_FILE]


def long_functions(package: Path) -> list[str]:
    return [
        f"{file.relative_to(package)}:{node.lineno}: {node.name} has {length} lines"
        for file in files(package)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION
    ]


def large_rooms(package: Path) -> list[str]:
    return [f"{name}: {share:.1%} of the lines" for name, share in shares(package).items() if share > LARGEST_ROOM]


def high_rooms(package: Path) -> list[str]:
    heights = {name: height(graph) for name, graph in rooms(package).items()}
    return [f"{name}: {floors} floors" for name, floors in heights.items() if floors > MAX_FLOORS]


def test_imports_only_go_down():
    assert not climbs(PACKAGE)


def test_no_modules_import_one_another():
    assert not circles(modules(PACKAGE))


def test_every_room_has_a_floor():
    assert {module(PACKAGE, file)[1] for file in files(PACKAGE)} <= FLOOR.keys()


def test_no_file_imports_a_peer():
    assert not peers_imported(PACKAGE)


def test_every_public_name_resolves_and_the_list_is_sorted():
    vitrail = importlib.import_module("vitrail")
    assert vitrail.__all__
    assert vitrail.__all__ == sorted(
        vitrail.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    assert all(hasattr(vitrail, name) for name in vitrail.__all__)
    assert set(vitrail.__all__) <= set(dir(vitrail))


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        importlib.import_module("vitrail").nonsense


def test_every_field_of_a_config_is_read():
    assert not dead_fields(PACKAGE)


def test_no_unsafe_loading_and_nothing_left_to_do():
    assert not banned_words(PACKAGE)


def test_private_names_of_torch_stand_in_one_file():
    assert not private_names(PACKAGE)
    assert (PACKAGE / MAY_BE_PRIVATE).is_file()


def test_only_listed_files_unpickle_and_only_with_a_guard():
    assert all((PACKAGE / name).is_file() for name in MAY_UNPICKLE)
    loads = [line for line in (PACKAGE / UNPICKLER).read_text().splitlines() if "torch.load(" in line]
    assert len(loads) == 1
    assert "weights_only=True" in loads[0]


# The checkers themselves, on a small house with one fault in each wall.


@pytest.fixture
def house(tmp_path):
    def build(**rooms: str) -> Path:
        package = tmp_path / "house"
        for name, text in {"__init__": "", "errors": "", "models/__init__": "", "data/__init__": "", **rooms}.items():
            file = package / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return package

    return build


@pytest.mark.parametrize(
    "line",
    [
        "import house.training.loop",
        "from house.training import loop",
        "from house import training",
        "from .. import training",
        "from ..training.loop import x",
        "from ..data import decode",
        "def later():\n    from house.training import loop",
        "if TYPE_CHECKING:\n    from house.training.loop import Loop",
        "importlib.import_module('house.training')",
        "from house import load",
    ],
)
def test_an_import_that_climbs_is_found(house, line):
    built = house(**{"models/vit": line, "training/__init__": "", "training/loop": "", "data/decode": ""})
    assert len(climbs(built)) == 1
    assert climbs(built)[0].startswith(f"models/vit.py (models, floor {FLOOR['models']}) imports ")


@pytest.mark.parametrize(
    "line",
    [
        "import house.errors",
        "from ..models import vit",
        "from . import other",
        "import torch, houseboat",
        "from .other import x",
    ],
)
def test_an_import_that_goes_down_or_stays_is_let_pass(house, line):
    assert not climbs(house(**{"training/loop": line, "training/other": ""}))


def test_an_import_of_a_peer_is_found_wherever_it_hides(house):
    built = house(
        **{"data/decode": "def f():\n    from torchvision.io import read_image", "models/vit": "import timm_like"}
    )
    assert peers_imported(built) == ["data/decode.py imports torchvision.io.read_image"]


def test_a_field_that_is_only_checked_is_dead(house):
    config = (
        "@dataclass(frozen=True, kw_only=True)\nclass Config:\n"
        "    width: int = 1\n    depth: int = 2\n    heads: int = 3\n"
        "    kind: ClassVar[str] = 'x'\n    def __post_init__(self):\n        assert self.depth\n"
    )
    use = "def build(config):\n    config.heads = 3\n    return config.width\n"
    assert dead_fields(house(**{"models/vit": config, "models/use": use})) == [
        "models/vit.py: Config.depth",
        "models/vit.py: Config.heads",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        {"models/vit": "from .swin import x", "models/swin": "from . import vit"},
        {
            "models/vit": "from .swin import x",
            "models/swin": "import house.models.beit",
            "models/beit": "from .vit import y",
        },
        {
            "models/vit": "def later():\n    from house.data.decode import x",
            "data/decode": "from ..models.vit import y",
        },
    ],
    ids=["two", "three", "of two rooms"],
)
def test_modules_that_import_one_another_are_found(house, lines):
    (circle,) = circles(modules(house(**lines)))
    assert {f"house.{name.replace('/', '.')}" for name in lines} == set(circle)


def test_the_floors_inside_of_a_room_are_counted_along_its_longest_way_down(house):
    built = house(
        **{"models/vit": "from .layers import x\nfrom .parts import y", "models/layers": "from .parts import z"},
        **{"models/parts": "from ..data.decode import d", "models/alone": "", "data/decode": ""},
    )
    assert not circles(modules(built))
    assert {name: height(graph) for name, graph in rooms(built).items()} == {"models": 3, "data": 1}


def test_large_and_high_rooms_are_found(house):
    chain = {f"data/floor{n}": f"from .floor{n + 1} import x" if n < 8 else "1\n" for n in range(1, 9)}
    built = house(**{"models/vit": "1\n" * 85}, **chain)
    assert large_rooms(built) == ["models: 91.4% of the lines"]
    assert high_rooms(built) == ["data: 8 floors"]


def test_banned_words_and_sizes_are_found(house):
    built = house(**{"data/decode": "x = 1\ny = torch.load(x)\n", "models/vit": "def f():\n" + "    1\n" * 400})
    assert banned_words(built) == ["data/decode.py:2: y = torch.load(x)"]
    assert long_files(built) == ["models/vit.py: 401 lines"]
    assert long_functions(built) == ["models/vit.py:1: f has 401 lines"]


@pytest.mark.parametrize(
    "line",
    [
        "torch._foreach_copy_(a, b)",
        "torch.cpu._is_vnni_supported()",
        "torch.ops.mkldnn.mystery()",
        "from torch.utils._pytree import tree_iter",
        "key = storage._cdata",
    ],
)
def test_a_private_name_of_torch_is_found(house, line):
    built = house(**{"models/vit": line, "torch_private": line, "data/decode": "torch.from_numpy(x)\ntorch.add_(y)"})
    assert private_names(built) == [f"models/vit.py:1: {line}"]


if __name__ == "__main__":
    checks = (long_functions, long_files, large_rooms, high_rooms)
    for question in (line for check in checks for line in check(PACKAGE)):
        print(f"question: vitrail/{question}")
