"""Routes about the server: model, liveness, readiness, metrics and reload."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from vitrail.serving import schemas
from vitrail.serving.documents import MODEL_ERRORS, errors
from vitrail.serving.refusals import Refused
from vitrail.serving.service import CurrentService, Service
from vitrail.tasks import Task
from vitrail.tasks.dense.class_colours import class_colours, to_hex
from vitrail.weights.description import describe

router = APIRouter(tags=["server"])


def replies(model: type[schemas.Schema]) -> dict[int | str, dict[str, Any]]:
    """Returns the responses of a health route, which has the same schema for 200 and 503."""
    return {200: {"model": model}, 503: {"model": model}, **errors("forbidden")}


@router.get(
    "/v1/model", summary="Get the model", responses={200: {"model": schemas.AboutModel}, **errors(*MODEL_ERRORS)}
)
async def model(service: CurrentService) -> Response:
    """Returns classes, preprocessing, metrics, model card, explanation methods and limits."""
    return JSONResponse(describe_model(service))


def describe_model(service: Service) -> dict[str, Any]:
    served, limits = service.served, service.limits
    model = served.model
    description = describe(model)
    return {
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
        "colours": list_colours(model),
        "provenance": strip_folders(description["provenance"]),
        "metrics": served.about.get("metrics", {}),
        "card": served.about.get("card"),
        "parity": served.about.get("parity"),
        "attention": {"layers": served.attention} if served.attention else None,
        "methods": served.methods,
        "limits": {
            "body_bytes": limits.body,
            "pixels": limits.pixels,
            "images": limits.images,
            "deadline_seconds": limits.deadline,
        },
    }


def list_colours(model: Task) -> list[str] | None:
    """Returns the colour of each class in drawings; None for a model whose answers are not drawn."""
    if not model.draws_answers:
        return None
    colours = class_colours(model.classes)
    return [to_hex(colours[name]) for name in model.classes]


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
    responses={200: {"model": schemas.ReloadReply}, **errors("unauthorised", "forbidden", "not_found", "conflict")},
)
async def reload(request: Request, service: CurrentService) -> Response:
    """Loads the model again from its source and serves it from then on. An invalid model is refused."""
    if request.app.state.token is None:
        raise Refused("forbidden", "a reload requires a server with a token", "start the server with --token-file")
    new, previous = await service.reload()
    return JSONResponse({"model": new.identity, "previous": previous})


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Check liveness", responses=replies(schemas.Liveness))
async def live(service: CurrentService) -> Response:
    alive = service.batcher.alive
    return JSONResponse({"alive": alive}, 200 if alive else 503)


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", summary="Check readiness", responses=replies(schemas.Readiness))
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
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
