"""The ASGI application: the routes behind `gate.Admission`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from vitrail.errors import ConfigError
from vitrail.serving import about, kserve, predicting
from vitrail.serving.gate import Admission
from vitrail.serving.pages import pages_routes
from vitrail.serving.refusals import STATUS, Refused
from vitrail.serving.runs import runs_routes
from vitrail.serving.service import Service

CODES = {status: code for code, status in reversed(STATUS.items())}


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
    app.include_router(predicting.router)
    app.include_router(about.router)
    app.include_router(kserve.router)
    app.include_router(pages_routes())
    if runs is not None:
        app.include_router(runs_routes(runs, lambda: service.draining))
    app.add_exception_handler(Refused, _handle_refused)
    app.add_exception_handler(ConfigError, _handle_config_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(Exception, _handle_exception)
    return Admission(app, service, token=token, hosts=hosts)


def _reply(request: Request, refused: Refused) -> Response:
    body = refused.body(request.url.path, request.state.request_id)
    return Response(body, refused.status, refused.headers, "application/json")


async def _handle_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _reply(request, error)


async def _handle_config_error(request: Request, error: Exception) -> Response:
    """Handles a request that the model does not support."""
    assert isinstance(error, ConfigError)
    return _reply(request, Refused("cannot_explain", error.what, error.remedy))


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Reports the first invalid parameter. The value itself is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return _reply(request, Refused("invalid", f"{where}: {first['msg']}", "see /docs"))


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "bad_request")
    response = _reply(request, Refused(code, str(error.detail), "see /docs for the routes"))
    response.headers.update(error.headers or {})
    return response


async def _handle_exception(request: Request, error: Exception) -> Response:
    """Handles any other exception; `gate.Admission` logs it with the request id."""
    return _reply(request, Refused("internal", "internal server error", "see the server log"))
