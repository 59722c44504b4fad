"""The routes for images: predict, embed, explain."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from PIL import Image

from vitrail.analysis.explanation import ExplainOptions, Explanation, PreparedImage, draw_heads
from vitrail.analysis.render import find_light_range, overlay
from vitrail.errors import ConfigError, nearest
from vitrail.markup import encode_image
from vitrail.serving import schemas
from vitrail.serving.loaded_model import ExplanationRequest, LayerMaps, LoadedModel, Output
from vitrail.serving.refusals import Refused
from vitrail.serving.schemas import IMAGE_ERRORS, image_body, replies
from vitrail.serving.service import CurrentService, Service
from vitrail.serving.uploads import Upload, parse_uploads
from vitrail.tasks.instances.answer import Instances, MaskFormat
from vitrail.tasks.task import choose_decode_options

LISTED = 5  # classes listed with an explanation
DIGITS = 5  # significant digits of the values of a map
Kind = TypeVar("Kind")


async def check_parameters(request: Request) -> None:
    """Raises `Refused` for an unknown query parameter; FastAPI would ignore a misspelt one."""
    known = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise Refused("invalid", f"unknown parameter {name[:40]!r}", nearest(name, known) if known else "")


router = APIRouter(tags=["images"], dependencies=[Depends(check_parameters)])


def get_uploads(request: Request) -> list[Upload]:
    """Returns the images of the request body, which `admission.Admission` has read. Raises `Refused`."""
    most = request.app.state.service.limits.images
    return parse_uploads(request.state.body, request.headers.get("content-type", ""), most=most)


def get_upload(request: Request) -> Upload:
    """Returns the image of a request with one image. Raises `Refused`."""
    return parse_uploads(request.state.body, request.headers.get("content-type", ""), most=1)[0]


Uploads = Annotated[list[Upload], Depends(get_uploads)]
Method = Literal["attention", "rollout", "gradient", "occlusion", "similarity"]
Top = Annotated[int, Query(ge=1, le=1000, description="maximum number of classes")]
Show = Annotated[Literal["json", "png"], Query(alias="as", description="values, or a picture with them drawn on it")]
PNG = {"image/png": {"schema": {"type": "string", "format": "binary"}}}


@router.post(
    "/v1/predict",
    summary="Predict the classes of images, the objects on them, or the class of every pixel",
    openapi_extra=image_body(),
    responses=replies(schemas.Predictions, *IMAGE_ERRORS, "invalid", "cannot_explain", "no_head", content=PNG),
)
async def predict(
    request: Request,
    service: CurrentService,
    uploads: Uploads,
    top: Top = LISTED,
    threshold: Annotated[float | None, Query(ge=0, le=1, description="least score, by default the detector's")] = None,
    side: Annotated[int | None, Query(ge=1, description="most pixels of a map's longer side; by default all")] = None,
    masks: Annotated[
        MaskFormat | None,
        Query(description="of instances: run lengths (the default), polygons of outer boundaries, or areas alone"),
    ] = None,
    show: Show = "json",
    explain: Method | None = None,
) -> Response:
    """Returns the most probable classes of each image, its objects, or a map of the classes of its pixels.

    With `as=png` objects or classes are drawn on the image. With `explain`, a classifier also explains the best class.
    """
    served, deadline = service.served, request.state.deadline
    options = _choose_options(served, top, threshold, side)
    if masks and served.model.name != "instances":
        what = f"masks is {masks}, and answers of the task {served.model.name} have no masks of objects"
        raise Refused("invalid", what, "leave masks out")
    if show == "png":
        return await _draw_answer(request, service, served, uploads, options)
    wanted = explain and served.check_request(ExplanationRequest(options=ExplainOptions(method=explain)))
    with service.batcher.reserve(len(uploads), explain or served.answer, deadline, request.state.expected):
        outputs = await service.run_each(served, served.answer, uploads, deadline)
        decoded = [await _decode(service, served, output, options, masks, deadline) for output in outputs]
        rows = [{"name": upload.name, **row} for upload, row in zip(uploads, decoded)]
        for upload, row in zip(uploads, rows):
            if wanted and "error" not in row:
                prepared = await service.prepare(served.prepare_explanation, upload, deadline)
                maps = await _explain(service, served, served.maps, prepared, wanted, deadline)
                row["explanation"] = _encode_explanation(prepared, wanted, maps)
    about = {"model": served.identity, "task": served.model.name, "multi_label": served.model.multi_label}
    return JSONResponse({**about, "predictions": rows})


def _choose_options(served: LoadedModel, top: int, threshold: float | None, side: int | None) -> dict[str, Any]:
    """Returns the arguments of `LoadedModel.decode`. Raises `Refused` for what the model's answers do not have."""
    if not served.model.classes:
        raise Refused("no_head", "the model has no head", "use POST /v1/embed for features")
    try:
        return choose_decode_options(served.model, top=top, threshold=threshold, side=side)
    except ConfigError as error:
        raise Refused("invalid", error.what, error.remedy) from error


async def _draw_answer(
    request: Request, service: Service, served: LoadedModel, uploads: list[Upload], options: dict[str, Any]
) -> Response:
    deadline = request.state.deadline
    if not served.model.draws_answers or len(uploads) > 1:
        what = f"{len(uploads)} images" if len(uploads) > 1 else f"an answer of the task {served.model.name}"
        raise Refused("invalid", f"{what} cannot be drawn on an image", "leave as=png out")
    with service.batcher.reserve(1, served.answer, deadline, request.state.expected):
        (output,) = await service.run_each(served, served.answer, uploads, deadline)
        content = await service.run_in_thread(served.draw, uploads[0].content, output, options, deadline=deadline)
    return Response(content, media_type="image/png")


@router.post(
    "/v1/embed",
    summary="Compute the features of images",
    openapi_extra=image_body(),
    responses=replies(schemas.Embeddings, *IMAGE_ERRORS, "cannot_explain"),
)
async def embed(request: Request, service: CurrentService, uploads: Uploads) -> Response:
    """Returns the feature vector of each image, the input of the model's head."""
    served = service.served
    with service.batcher.reserve(len(uploads), served.features, request.state.deadline, request.state.expected):
        features = await service.run_each(served, served.features, uploads, request.state.deadline)
    rows = [
        {"name": upload.name, **({"error": row.fault} if isinstance(row, Refused) else {"features": row.tolist()})}
        for upload, row in zip(uploads, features)
    ]
    return JSONResponse({"model": served.identity, "embeddings": rows})


@router.post(
    "/v1/explain",
    summary="Explain the prediction for an image",
    openapi_extra=image_body(several=False),
    responses=replies(schemas.ExplanationReply, *IMAGE_ERRORS, "invalid", "cannot_explain", content=PNG),
)
async def explain(
    request: Request,
    service: CurrentService,
    upload: Annotated[Upload, Depends(get_upload)],
    method: Method = "attention",
    layer: Annotated[
        str, Query(pattern=r"^(all|-?[0-9]{1,3})$", description="its index (-1: the last), or all")
    ] = "-1",
    head: Annotated[str, Query(pattern=r"^(mean|all|[0-9]{1,3})$", description="its index, mean or all")] = "mean",
    query: Annotated[
        str, Query(pattern=r"^([0-9]{1,4},[0-9]{1,4})?$", description="row,column of the query patch")
    ] = "",
    target: Annotated[str | None, Query(description="the class to explain; by default the predicted class")] = None,
    show: Show = "json",
) -> Response:
    """Returns an explanation as values or as an image.

    The method `attention` returns the attention maps of one layer or all layers. `query` selects the query patch, instead
    of the class token; for the method `similarity` it is the patch that is compared with all, by default that in the centre.
    """
    served, deadline = service.served, request.state.deadline
    which = -1 if layer == "all" else int(layer)
    row, _, column = query.partition(",")
    place = (int(row), int(column)) if query else None
    patch = place if method == "similarity" else None
    head_index = int(head) if head.isdigit() else head
    options = ExplainOptions(method=method, layer=which, head=head_index, target=target, patch=patch)
    asked = ExplanationRequest(options=options, every_layer=layer == "all", query=None if patch else place)
    wanted = served.check_request(asked)
    with service.batcher.reserve(1, method, deadline, request.state.expected):
        prepared = await service.prepare(served.prepare_explanation, upload, deadline)
        if show == "png":
            verb = served.explain if options.head == "all" else served.maps
            result = await _explain(service, served, verb, prepared, wanted, deadline)
            content = await service.run_in_thread(_draw_png, prepared, wanted, result, deadline=deadline)
            return Response(content, media_type="image/png")
        prediction = None
        if served.model.answers_classes:
            images = prepared.images[0].cpu().numpy()  # (C, h, w), decoded once for both
            output = await service.batcher.run(served.answer_normalised, images, deadline)
            prediction = served.decode(output, {"top": LISTED}).to_json()
        maps = await _explain(service, served, served.maps, prepared, wanted, deadline)
        reply = {"model": served.identity, "name": upload.name, "prediction": prediction}
        body = await service.run_in_thread(_encode_reply, reply, prepared, wanted, maps, deadline=deadline)
    return Response(body, media_type="application/json")


async def _explain(
    service: Service,
    served: LoadedModel,
    verb: Callable[[PreparedImage, ExplanationRequest, float], Kind],
    prepared: PreparedImage,
    wanted: ExplanationRequest,
    deadline: float,
) -> Kind:
    """Runs ``verb`` of ``served`` in the batcher's thread; stops at its next forward pass if the client disconnects."""
    over = threading.Event()

    def work(images: list[PreparedImage]) -> list[Kind]:
        with served.until(over):
            return [verb(images[0], wanted, deadline)]

    work.__name__ = wanted.options.method  # the name by which the batcher measures it
    try:
        return await service.batcher.run(work, prepared, deadline)
    finally:
        over.set()


async def _decode(
    service: Service,
    served: LoadedModel,
    output: Output | Refused,
    options: dict[str, Any],
    masks: MaskFormat | None,
    deadline: float,
) -> dict[str, Any]:
    """Returns the prediction for one image, or its error."""
    if isinstance(output, Refused):
        return {"error": output.fault}

    def encode() -> dict[str, Any]:
        answer = served.decode(output, options)
        return answer.to_json(masks) if masks and isinstance(answer, Instances) else answer.to_json()

    # a map is as large as its image
    return await service.run_in_thread(encode, deadline=deadline) if served.model.draws_answers else encode()


def _encode_explanation(prepared: PreparedImage, wanted: ExplanationRequest, maps: list[LayerMaps]) -> dict[str, Any]:
    encoded = [
        {
            "layer": each.layer,
            "heads": each.heads,
            "rows": each.values.shape[1],
            "columns": each.values.shape[2],
            "reach": list(each.reach),
            "values": [[float(f"{value:.{DIGITS}g}") for value in head.ravel()] for head in each.values],
            "note": each.note,
        }
        for each in maps
    ]
    return {"method": wanted.options.method, "box": [round(edge, 2) for edge in prepared.box], "maps": encoded}


def _encode_reply(
    reply: dict[str, Any], prepared: PreparedImage, wanted: ExplanationRequest, maps: list[LayerMaps]
) -> bytes:
    """Returns the body of a reply with the picture. Encoding is slow and must not run in the event loop."""
    height, width, _ = prepared.picture.shape
    jpeg = encode_image(Image.fromarray(prepared.picture), "JPEG", quality=88)
    picture = {"width": width, "height": height, "jpeg": b64encode(jpeg).decode()}
    return json.dumps({**reply, "picture": picture, **_encode_explanation(prepared, wanted, maps)}).encode()


def _draw_png(prepared: PreparedImage, wanted: ExplanationRequest, result: Explanation | list[LayerMaps]) -> bytes:
    """Returns the picture with the map drawn on it, or a contact sheet of all heads, as a PNG."""
    if isinstance(result, Explanation):
        drawn = draw_heads(prepared.picture, result, wanted.options)
    else:
        heat = result[0].values[0]
        drawn = overlay(prepared.picture, heat, box=prepared.box, reach=result[0].reach, range=find_light_range(heat))
    return encode_image(Image.fromarray(drawn), "PNG")
