"""Run directories as the engine writes them, and a client of the routes that show them."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.testclient import TestClient

from vitrail.config.schema import ModelSettings, Run, ScheduleSettings
from vitrail.runs.folder import RunFolder
from vitrail.serving.refusals import Refused
from vitrail.serving.runs import runs_routes


def client_of(folder: Path, **more) -> TestClient:
    app = FastAPI()
    app.include_router(runs_routes(folder, **more))

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return Response(error.body("", "test"), error.status, error.headers)

    return TestClient(app)


def train(path: Path, steps: int = 6, *, taken: int | None = None, state: str = "finished", **changes) -> RunFolder:
    """A run as the engine writes it, evaluated at every third step; by default all steps are taken."""
    folder = RunFolder(path)
    folder.open()
    folder.write_config(
        Run(schedule=ScheduleSettings(steps=steps), **{"model": ModelSettings(name="vit-ti16"), **changes})
    )
    folder.write_status("running", steps=steps)
    folder.start_metrics(0)
    for step in range(1, (steps if taken is None else taken) + 1):
        folder.write_metrics(
            {"step": step, "epoch": step / 3, "images": 8 * step, "loss": 2.5 / step, "top1": step / 10, "lr": 1e-3}
        )
        if step % 3 == 0:
            folder.write_metrics({"step": step, "epoch": step / 3, "val_top1": step / 8, "val_nll": 3.0 / step})
    folder.write_status(state, steps=steps)
    folder.close()
    return folder
