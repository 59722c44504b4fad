"""The ASGI application: its routes behind `admission.Admission`, its error replies, the routes about the server itself, and
the web page with its files.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from vitrail.analysis.palette import ANCHORS, DARK_RULE, ICON, OF_LIGHT, SHARED
from vitrail.checksums import sha256_of
from vitrail.errors import ConfigError
from vitrail.reports.metric_names import metric_of
from vitrail.serving import image_routes, kserve, schemas
from vitrail.serving.admission import Admission
from vitrail.serving.refusals import STATUS, Refused
from vitrail.serving.runs import runs_routes
from vitrail.serving.schemas import MODEL_ERRORS, errors, replies
from vitrail.serving.service import CurrentService, Service
from vitrail.tasks.dense.drawing import class_colours, to_hex
from vitrail.weights.description import describe

CODES = {status: code for code, status in reversed(STATUS.items())}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
DOCUMENTS = {"/": "index.html", "/docs": "docs.html"}
router, pages = APIRouter(tags=["server"]), APIRouter(include_in_schema=False)


def create_app(
    service: Service, *, token: str | None = None, hosts: Iterable[str] | None = None, runs: Path | None = None
) -> Admission:
    """Returns the ASGI application of ``vitrail serve``.

    Args:
        service: the model and its queue.
        token: the bearer token that clients must send; None disables authentication (loopback only).
        hosts: allowed host names; None allows any.
        runs: folder of run directories listed by the page.
    """
    app = FastAPI(
        title="vitrail",
        version=version("vitrail"),
        description="Predictions, features and explanations of one Vision Transformer for images.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.service, app.state.token = service, token
    for routes in (image_routes.router, router, kserve.router, pages):
        app.include_router(routes)
    if runs is not None:
        app.include_router(runs_routes(runs, lambda: service.draining))
    for kind in (Refused, ConfigError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _reply_to_error)
    return Admission(app, service, token=token, hosts=hosts)


async def _reply_to_error(request: Request, error: Exception) -> Response:
    """Returns the reply to an error in a route. `Admission` logs those that are internal, with the request id."""
    refused = error if isinstance(error, Refused) else _to_refused(error)
    body = refused.body(request.url.path, request.state.request_id)
    response = Response(body, refused.status, refused.headers, "application/json")
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _to_refused(error: Exception) -> Refused:
    match error:
        case ConfigError():  # the model does not support the request
            return Refused("cannot_explain", error.what, error.remedy)
        case RequestValidationError():  # the first invalid parameter; its value is not repeated
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            return Refused("invalid", f"{where}: {first['msg']}", "see /docs")
        case HTTPException():
            code = CODES.get(error.status_code, "bad_request")
            return Refused(code, str(error.detail), "see /docs for the routes")
    return Refused("internal", "internal server error", "see the server log")


@router.get("/v1/model", summary="Get the model", responses=replies(schemas.AboutModel, *MODEL_ERRORS))
async def describe_model(service: CurrentService) -> Response:
    """Returns classes, preprocessing, metrics, model card, explanation methods and limits."""
    served, limits = service.served, service.limits
    model = served.model
    description = describe(model)
    colours = class_colours(model.classes) if model.draws_answers else {}
    about = {
        "name": served.name,
        "version": served.version,
        "source": served.about.get("source", ""),
        "sha256": served.about.get("sha256"),
        "task": model.name,
        "architecture": description["architecture"],
        "image_size": list(model.preprocessing.size),
        "channels": model.preprocessing.channels,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "numerics": description["config"],
        **{name: description[name] for name in ("classes", "preprocessing")},
        **{name: getattr(model, name) for name in ("multi_label", "temperature")},
        "threshold": getattr(model, "threshold", None),
        "colours": [to_hex(colours[name]) for name in model.classes] if model.draws_answers else None,
        "provenance": strip_folders(description["provenance"]),
        "metrics": served.about.get("metrics", {}),
        "metric_names": {name: metric_of(name).label for name in served.about.get("metrics", {})},
        "card": served.about.get("card"),
        "parity": served.about.get("parity"),
        "attention": {"layers": served.attention} if served.attention else None,
        "feature_map": served.feature_map and list(served.feature_map),
        "methods": served.methods,
        "limits": {
            "body_bytes": limits.body,
            "pixels": limits.pixels,
            "images": limits.images,
            "deadline_seconds": limits.deadline,
        },
    }
    return JSONResponse(about)


def strip_folders(value: Any) -> Any:
    """Reduces each path in nested values to its last part, so that no folder of this machine is sent."""
    match value:
        case dict():
            return {name: strip_folders(item) for name, item in value.items()}
        case list() | tuple():
            return [strip_folders(item) for item in value]
        case str() if not value.startswith("hf:"):
            return PurePath(value.replace("\\", "/")).name or value
    return value


@router.post(
    "/v1/reload",
    summary="Reload the model",
    responses=replies(schemas.ReloadReply, "unauthorised", "forbidden", "not_found", "conflict"),
)
async def reload(request: Request, service: CurrentService) -> Response:
    """Loads the model again from its source and serves it from then on. An invalid model is refused."""
    if request.app.state.token is None:
        raise Refused("forbidden", "a reload requires a server with a token", "start the server with --token-file")
    new, previous = await service.reload(by_client=True)
    return JSONResponse({"model": new.identity, "previous": previous})


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Check liveness", responses=replies(dict[str, bool], "forbidden", also=503))
async def live(service: CurrentService) -> Response:
    alive = service.batcher.is_healthy
    return JSONResponse({"alive": alive}, 200 if alive else 503)


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Check readiness", responses=replies(dict[str, bool | str], "forbidden", also=503))
async def ready(service: CurrentService) -> Response:
    reason = service.unready
    headers = {"Retry-After": "1"} if reason else {}
    return JSONResponse({"ready": not reason, "reason": reason}, 503 if reason else 200, headers)


@router.get(
    "/metrics",
    summary="Get Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **errors("unauthorised", "forbidden")},
)
async def metrics(service: CurrentService) -> Response:
    service.update_gauges()
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


class File(NamedTuple):
    """A file to send, with its media type and ETag."""

    content: bytes
    media: str
    tag: str


@cache
def load_files() -> dict[str, File]:
    """Returns all files of the page by name."""
    folder = (files("vitrail.serving") / "page").iterdir()
    contents = {file.name: file.read_bytes() for file in folder if PurePath(file.name).suffix in TYPES}
    contents |= {"palette.css": palette().encode(), "icon.svg": ICON.encode()}  # generated from those of the reports
    tagged = {name: (content, f'"{sha256_of(content)[:16]}"') for name, content in contents.items()}
    return {name: File(content, TYPES[PurePath(name).suffix], tag) for name, (content, tag) in tagged.items()}


def palette() -> str:
    """Returns the colours and fonts of the reports as CSS custom properties."""
    return f":root{{color-scheme:light dark;{SHARED};--scale:{ANCHORS};{OF_LIGHT}}}\n{DARK_RULE}\n"


@pages.api_route("/", methods=["GET", "HEAD"])
@pages.api_route("/docs", methods=["GET", "HEAD"])
@pages.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def send_file(request: Request) -> Response:
    """Returns a file of the page, or 304 if the browser has the current version."""
    name = request.path_params.get("name", DOCUMENTS.get(request.scope["path"]))
    if name not in load_files():
        raise Refused("not_found", "there is no such file", "open / for the page")
    content, media, tag = load_files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media, headers=headers)
