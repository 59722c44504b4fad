"""The routes that answer for images: predict, embed, explain."""

from __future__ import annotations

import io
import json
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from PIL import Image

from vitrail.analysis.explanation import ExplainOptions, Explanation, PreparedImage, heads_sheet
from vitrail.analysis.pictures import light_range, overlay
from vitrail.errors import nearest
from vitrail.serving import answers
from vitrail.serving.documents import TAKES_IMAGES, errors, pictures_body
from vitrail.serving.loaded_model import Answered, LayerMaps, LoadedModel, Question
from vitrail.serving.refusals import Refused
from vitrail.serving.service import Service
from vitrail.serving.uploads import Upload, uploads_of

LISTED = 5  # classes beside an explanation
DIGITS = 5  # significant ones of a number in a map

Kind = TypeVar("Kind")


async def only_known(request: Request) -> None:
    """Raises `Refused` for a parameter that the route does not have: one that is mistyped would be passed over."""
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise Refused("invalid", f"there is no parameter {name[:40]!r}", nearest(name, known) if known else "")


router = APIRouter(tags=["images"], dependencies=[Depends(only_known)])


async def the_service(request: Request) -> Service:
    return request.app.state.service


def the_uploads(request: Request) -> list[Upload]:
    """The images of the request's body, which the door has read. Raises `Refused`."""
    most = request.app.state.service.limits.images
    return uploads_of(request.state.body, request.headers.get("content-type", ""), most=most)


def the_upload(request: Request) -> Upload:
    """The only one. Raises `Refused`."""
    return uploads_of(request.state.body, request.headers.get("content-type", ""), most=1)[0]


TheService = Annotated[Service, Depends(the_service)]
Method = Literal["attention", "rollout", "gradient", "occlusion"]
Top = Annotated[int, Query(ge=1, le=1000, description="how many classes are listed at most")]


@router.post(
    "/v1/predict",
    summary="What is on images",
    openapi_extra=pictures_body(),
    responses={200: {"model": answers.Predictions}, **errors(*TAKES_IMAGES, "invalid", "cannot_explain", "no_head")},
)
async def predict(
    request: Request,
    service: TheService,
    uploads: Annotated[list[Upload], Depends(the_uploads)],
    top: Top = LISTED,
    explain: Method | None = None,
) -> Response:
    """The best classes of each image. With `explain`, also what its best class rests on, as numbers."""
    served, deadline = service.served, request.state.deadline
    if not served.classifier.classes:
        raise Refused("no_head", "the model has no head to predict with", "POST /v1/embed gives its features")
    question = None if explain is None else served.check_question(Question(how=ExplainOptions(method=explain)))
    with service.batcher.places(len(uploads)):
        given = await service.each(served, served.answer, uploads, deadline)
        told = [{"name": upload.name, **_ranking(served, each, top)} for upload, each in zip(uploads, given)]
        if question is not None:
            for upload, row in zip(uploads, told):
                if "error" not in row:
                    seen = await service.prepared(served.look, upload, deadline)
                    maps = await _asked(service, served, served.maps, seen, question, deadline)
                    row["explanation"] = _explanation(seen, question, maps)
    return JSONResponse({**model_name(served), "multi_label": served.classifier.multi_label, "predictions": told})


@router.post(
    "/v1/embed",
    summary="The features of images",
    openapi_extra=pictures_body(),
    responses={200: {"model": answers.Embeddings}, **errors(*TAKES_IMAGES)},
)
async def embed(
    request: Request, service: TheService, uploads: Annotated[list[Upload], Depends(the_uploads)]
) -> Response:
    """What the model's head reads of each image: a vector that is alike for images that look alike to the model."""
    served = service.served
    with service.batcher.places(len(uploads)):
        given = await service.each(served, served.features, uploads, request.state.deadline)
    told = [
        {"name": upload.name, **({"error": each.fault} if isinstance(each, Refused) else {"features": each.tolist()})}
        for upload, each in zip(uploads, given)
    ]
    return JSONResponse({**model_name(served), "embeddings": told})


@router.post(
    "/v1/explain",
    summary="What the answer for an image rests on",
    openapi_extra=pictures_body(several=False),
    responses={
        200: {"model": answers.Explained, "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **errors(*TAKES_IMAGES, "invalid", "cannot_explain"),
    },
)
async def explain(
    request: Request,
    service: TheService,
    upload: Annotated[Upload, Depends(the_upload)],
    method: Method = "attention",
    layer: Annotated[
        str, Query(pattern=r"^(all|-?[0-9]{1,3})$", description="a number, -1 is the last, or all")
    ] = "-1",
    head: Annotated[str, Query(pattern=r"^(mean|all|[0-9]{1,3})$", description="a number, mean or all")] = "mean",
    query: Annotated[str, Query(pattern=r"^([0-9]{1,4},[0-9]{1,4})?$", description="row,column of who asks")] = "",
    target: Annotated[str | None, Query(description="the class to explain; by default the model's answer")] = None,
    show: Annotated[
        Literal["json", "png"], Query(alias="as", description="numbers, or the picture lit by them")
    ] = "json",
) -> Response:
    """Numbers, or a picture, of what a layer's heads attend to, or of what a class rests on.

    `attention` asks one layer, or all of them; `query` is a place of its map that asks instead of the class token.
    """
    served, deadline = service.served, request.state.deadline
    how = ExplainOptions(
        method=method,
        layer=-1 if layer == "all" else int(layer),
        head=int(head) if head.isdigit() else head,
        target=target,
    )
    row, _, column = query.partition(",")
    question = served.check_question(
        Question(how=how, every_layer=layer == "all", query=(int(row), int(column)) if query else None)
    )
    with service.batcher.places(1):
        seen = await service.prepared(served.look, upload, deadline)
        if show == "png":
            verb = served.explain if how.head == "all" else served.maps
            found = await _asked(service, served, verb, seen, question, deadline)
            return Response(await service.aside(_png, seen, question, found, deadline=deadline), media_type="image/png")
        prediction = None
        if served.classifier.classes:
            images = seen.images[0].cpu().numpy()  # (C, h, w), decoded once for both
            answer = await service.batcher.run(served.answer_normalised, images, deadline)
            prediction = _ranking(served, answer, LISTED)
        maps = await _asked(service, served, served.maps, seen, question, deadline)
        told = {**model_name(served), "name": upload.name, "prediction": prediction}
        body = await service.aside(_told_whole, told, seen, question, maps, deadline=deadline)
    return Response(body, media_type="application/json")


async def _asked(
    service: Service,
    served: LoadedModel,
    verb: Callable[[PreparedImage, Question], Kind],
    seen: PreparedImage,
    question: Question,
    deadline: float,
) -> Kind:
    """What ``verb`` of ``served`` finds, by the network's thread; it stops at its next batch once nobody waits any more."""
    over = threading.Event()

    def work(looks: list[PreparedImage]) -> list[Kind]:
        with served.until(over):
            return [verb(looks[0], question)]

    try:
        return await service.batcher.run(work, seen, deadline)
    finally:
        over.set()


def model_name(served: LoadedModel) -> dict[str, Any]:
    return {"model": {"name": served.name, "version": served.version}}


def _ranking(served: LoadedModel, answer: Answered | Refused, top: int) -> dict[str, Any]:
    """The best classes of one image, or why there are none."""
    if isinstance(answer, Refused):
        return {"error": answer.fault}
    ranked = served.top(answer.probabilities, top)
    rows = [{"label": label, "score": score} for label, score in ranked]
    return {**rows[0], "top": rows}


def _explanation(seen: PreparedImage, question: Question, maps: list[LayerMaps]) -> dict[str, Any]:
    box = [round(each, 2) for each in seen.box]
    return {"method": question.how.method, "box": box, "maps": [_told(each) for each in maps]}


def _told(maps: LayerMaps) -> dict[str, Any]:
    _, rows, columns = maps.values.shape
    values = [[float(f"{value:.{DIGITS}g}") for value in each.ravel()] for each in maps.values]
    told = {"layer": maps.layer, "heads": maps.heads, "rows": rows, "columns": columns}
    return {**told, "reach": list(maps.reach), "values": values}


def _picture(seen: PreparedImage) -> dict[str, Any]:
    height, width, _ = seen.picture.shape
    file = io.BytesIO()
    Image.fromarray(seen.picture).save(file, "JPEG", quality=88)
    return {"width": width, "height": height, "jpeg": b64encode(file.getvalue()).decode()}


def _told_whole(told: dict[str, Any], seen: PreparedImage, question: Question, maps: list[LayerMaps]) -> bytes:
    """The body of a reply with the picture; numbers and pictures take their time, and so the event loop is not for them."""
    return json.dumps({**told, "picture": _picture(seen), **_explanation(seen, question, maps)}).encode()


def _png(seen: PreparedImage, question: Question, found: Explanation | list[LayerMaps]) -> bytes:
    """The picture lit by the explanation; of all heads a contact sheet."""
    if isinstance(found, Explanation):
        drawn = heads_sheet(seen.picture, found, question.how)
    else:
        heat = found[0].values[0]
        drawn = overlay(seen.picture, heat, box=seen.box, reach=found[0].reach, range=light_range(heat))
    file = io.BytesIO()
    Image.fromarray(drawn).save(file, "PNG")
    return file.getvalue()
