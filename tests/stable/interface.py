"""The public interface of docs/stability.md, one promise a line. ``python -m tests.stable.interface`` renews the list."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vitrail
from tests.docs.test_generators import verbs
from tests.verbs.test_json import read_page
from vitrail import errors
from vitrail.cli import build_app
from vitrail.config.parse import flatten, plain
from vitrail.config.recipes import RECIPES
from vitrail.config.schema import Run, ScheduleSettings
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
        *list_defaults(),
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
            for member in (each for each in dir(value) if is_own(value, each)):
                yield f"python vitrail.{name}.{member}"
                if inspect.isfunction(method := inspect.getattr_static(value, member)):
                    yield from list_parameters(f"vitrail.{name}.{member}", method)
        elif callable(value):
            yield from list_parameters(f"vitrail.{name}", value)
        yield f"python vitrail.{name}"


def list_defaults() -> Iterator[str]:
    """The settings, with the defaults that hold where no recipe sets them; a length is required."""
    default = flatten(plain(Run(schedule=ScheduleSettings(epochs=1))))
    for key, each in list_settings().items():
        yield f"setting {key}: {each.type} = {json.dumps(default.get(key, '...'))}"


def is_own(cls: type, member: str) -> bool:
    """Whether a name of a class is public and comes from vitrail, not from torch."""
    homes = (base for base in cls.__mro__ if member in vars(base))
    return not member.startswith("_") and next(homes).__module__.startswith("vitrail.")


def list_parameters(name: str, function: Any) -> Iterator[str]:
    """The parameters of a function, with their defaults; those that may be given without their name with their place."""
    for place, each in enumerate(inspect.signature(function).parameters.values()):
        number = "" if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) else f"{place} "
        shown = each.default if isinstance(each.default, bool | int | float | str | None) else "..."
        yield f"python {name}({number}{each.name}{'' if each.default is each.empty else f'={shown!r}'})"


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
