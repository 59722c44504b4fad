"""The public interface of docs/stability.md, one promise a line. ``python -m tests.stable.interface`` renews the list."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vitrail
from tests.docs.test_generators import verbs
from tests.verbs.test_json import read_page
from vitrail import errors
from vitrail.cli import build_app
from vitrail.config.recipes import RECIPES
from vitrail.models import MODELS
from vitrail.objectives import OBJECTIVES
from vitrail.reports.metric_names import METRICS
from vitrail.tasks import TASKS
from vitrail.verbs.settings import list_settings

FILE = Path(__file__).with_name("interface.txt")


def list_interface() -> list[str]:
    """Everything of which docs/stability.md promises that it stays until the next major version."""
    lines = [
        *list_python(),
        *list_commands(),
        *(f"setting {each.key}: {each.type} = {each.row()['value']}" for each in list_settings().values()),
        *(f"exit {each.code} {each.__name__}" for each in list_errors()),
        *(f"json {command}: {key}: {kind}" for command, keys in read_page().items() for key, kind in keys.items()),
        *list_routes(),
    ]
    names = {"model": MODELS, "recipe": RECIPES, "task": TASKS, "objective": OBJECTIVES, "metric": METRICS}
    return sorted([*lines, *(f"{kind} {name}" for kind, table in names.items() for name in table)])


def list_python() -> Iterator[str]:
    """The parameters of each public function, and the public methods and attributes of each public class."""
    for name in vitrail.__all__:
        value = getattr(vitrail, name)
        if inspect.isclass(value):
            yield from (f"python vitrail.{name}.{member}" for member in dir(value) if is_own(value, member))
        elif callable(value):
            yield from (f"python vitrail.{name}({describe(each)})" for each in parameters(value))
        yield f"python vitrail.{name}"


def is_own(cls: type, member: str) -> bool:
    """Whether a name of a class is public and comes from vitrail, not from torch."""
    homes = (base for base in cls.__mro__ if member in vars(base))
    return not member.startswith("_") and next(homes).__module__.startswith("vitrail.")


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def describe(parameter: inspect.Parameter) -> str:
    """The name of a parameter, with its default, or the place of a required one."""
    if parameter.default is inspect.Parameter.empty:
        return str(parameter.name) if parameter.kind is parameter.KEYWORD_ONLY else f"{parameter.name} positional"
    shown = parameter.default if isinstance(parameter.default, bool | int | float | str | None) else "..."
    return f"{parameter.name}={shown!r}"


def list_commands() -> Iterator[str]:
    """The options of each command, by all their names."""
    for name, command in verbs(build_app()):
        for argument in command.assemble_argument_collection():
            yield f"command {name} {' '.join(argument.names)}{' required' if argument.required else ''}"


def list_errors() -> list[Any]:
    own = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.VitrailError)
    ]
    return [each for each in own if "code" in vars(each)]


def list_routes() -> Iterator[str]:
    """The routes of the server, and the fields of the objects that it sends and takes."""
    from starlette.testclient import TestClient

    from tests.looked_at import shaken
    from vitrail.serving.app import create_app
    from vitrail.serving.limits import ServerLimits
    from vitrail.serving.loaded_model import LoadedModel
    from vitrail.serving.service import Service

    service = Service(lambda: LoadedModel(shaken(), "tiny"), ServerLimits())
    schema = TestClient(create_app(service), base_url="http://localhost").get("/openapi.json").json()
    service.close()
    for path, methods in schema["paths"].items():
        yield from (f"http {method.upper()} {path}" for method in methods)
    for name, described in schema["components"]["schemas"].items():
        required = described.get("required", ())
        for field in described.get("properties", ()):
            yield f"http {name}.{field}{' required' if field in required else ''}"


def renew() -> None:
    FILE.write_text("".join(f"{line}\n" for line in list_interface()))


if __name__ == "__main__":
    renew()
