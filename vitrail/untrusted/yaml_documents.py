"""YAML from untrusted sources."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from vitrail.untrusted.limits import DEPTH, DIGITS, YAML_BYTES, YAML_NODES

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _Loader(yaml.SafeLoader):
    """Counts nodes while they are composed, those that an alias repeats at each of its places, and refuses duplicate keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = self.nodes = 0
        self.sizes: dict[str, int] = {}  # nodes below each anchor

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event, before = self.peek_event(), self.nodes
        if isinstance(event, yaml.AliasEvent):
            # of an anchor that is not complete, or does not exist, the parser itself has an error
            self.nodes += self.sizes.get(event.anchor, 0)
            self._check(event, event.anchor in self.anchors and event.anchor not in self.sizes)
            return super().compose_node(parent, index)
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        self._check(event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if event.anchor is not None:
            self.sizes[event.anchor] = self.nodes - before
        return node

    def _check(self, event: yaml.Event, is_loop: bool = False) -> None:
        if is_loop:
            fault = "an alias inside of what it stands for"
        elif self.depth > DEPTH:
            fault = f"nested deeper than {DEPTH} levels"
        elif self.nodes > YAML_NODES:
            fault = f"more than {YAML_NODES:,} values, with those that aliases repeat"
        else:
            return
        raise yaml.composer.ComposerError(None, None, fault, event.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and len(node.value) > DIGITS:
            what = f"a number has {len(node.value):,} characters, at most {DIGITS} are read"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # such as a date of the 99th month
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key_node.start_mark)
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=deep)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


class YamlError(ValueError):
    """YAML that is not read: ``problem`` says why, ``where`` is its line and column, empty if unknown."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.problem, self.where = problem, where


class _TextLoader(_Loader):
    """Keeps every scalar but merge keys as the text that the document has."""


_TextLoader.yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}


def parse_yaml(content: bytes | str, *, as_text: bool = False) -> Any:
    """Parses a YAML document of plain values, text or its bytes in UTF-8.

    With ``as_text`` scalars stay as they are written, where YAML 1.1 reads ``no`` as false, ``010`` as 8 and ``12:30`` as 750.

    Raises:
        YamlError: the content is not YAML in UTF-8, has other tags than those of plain values or a key twice in a mapping, or
            exceeds `YAML_BYTES`, `YAML_NODES`, `DEPTH` or, in a number, `DIGITS`.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        if len(text) > YAML_BYTES:
            raise YamlError(f"{len(text):,} characters, at most {YAML_BYTES:,} are read")
        return yaml.load(text, Loader=_TextLoader if as_text else _Loader)
    except UnicodeDecodeError as error:
        raise YamlError(f"not UTF-8 text: {error.reason}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise YamlError(str(getattr(error, "problem", None) or error), where) from error
