"""The Open Inference Protocol, version 2, of KServe and Triton: health, metadata, inference.

N images, C channels, h x w input size, K classes, F features.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from importlib.metadata import version as package_version
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from vitrail.data.prepare import Picture
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.refusals import Refused
from vitrail.serving.schemas import PIXEL
from vitrail.serving.service import CurrentService, Service
from vitrail.serving.uploads import MAX_COMMAS, Upload, decode_base64, parse_json

INPUTS = "send one input: 'image' BYTES (files in base64), 'pixels' UINT8 (N, h, w, C) or 'images' FP32 (N, C, h, w)"
DATATYPES = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])


class Input(BaseModel):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class Inference(BaseModel):
    """Schema of a request body, for the documentation only; the route parses the body itself."""

    id: str | None = None
    inputs: list[Input] = Field(min_length=1, max_length=1)
    outputs: list[dict[str, Any]] | None = None


EXAMPLE = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [PIXEL]}]}
# without references: they are relative to the document that the schema becomes a part of
SCHEMA = Inference.model_json_schema()
SCHEMA["properties"]["inputs"]["items"] = SCHEMA.pop("$defs")["Input"]
BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": SCHEMA, "example": EXAMPLE}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": dict[str, str], "description": "error: what is wrong"} for status in statuses}


async def get_model(service: CurrentService, model: str, version: str | None = None) -> LoadedModel:
    """Returns the model of a path. Raises `Refused` if the name or version is not the one that is served."""
    served = service.served
    for what, asked, known in (("name", model, served.name), ("version", version, served.version)):
        if asked not in (None, known):
            raise Refused("not_found", f"unknown model {what}", f"the served {what} is {known!r}")
    return served


CurrentModel = Annotated[LoadedModel, Depends(get_model)]
MODEL, VERSION = "/models/{model}", "/models/{model}/versions/{version}"
INFERS = errors(400, 401, 403, 404, 408, 413, 422, 500, 503, 504)


@router.get("", responses=errors(401, 403))
async def server() -> dict[str, Any]:
    return {"name": "vitrail", "version": package_version("vitrail"), "extensions": []}


@router.get("/health/live", responses=errors(401, 403, 503))
async def live(service: CurrentService) -> Response:
    return JSONResponse({"live": service.batcher.is_healthy}, 200 if service.batcher.is_healthy else 503)


@router.get("/health/ready", responses=errors(401, 403, 503))
async def ready(service: CurrentService) -> Response:
    return JSONResponse({"ready": not service.unready}, 503 if service.unready else 200)


@router.get(MODEL, responses=errors(401, 403, 404, 422))
@router.get(VERSION, responses=errors(401, 403, 404, 422), operation_id="metadata_of_version")
async def metadata(served: CurrentModel) -> dict[str, Any]:
    """Returns names, types and shapes of the inputs and outputs. A request has exactly one of the inputs."""
    (height, width), channels = served.model.preprocessing.size, served.model.preprocessing.channels
    # -1 is the number of images
    described = (_describe_array(name, array) for name, array in served.sample.items())
    outputs = [{**tensor, "shape": [-1, *tensor["shape"][1:]]} for tensor in described]
    return {
        "name": served.name,
        "versions": [served.version],
        "platform": "vitrail",
        "inputs": [
            _describe_tensor("image", "BYTES", -1),
            _describe_tensor("pixels", "UINT8", -1, height, width, channels),
            _describe_tensor("images", "FP32", -1, channels, height, width),
        ],
        "outputs": outputs or [_describe_tensor("features", "FP32", -1, -1)],
    }


@router.get(MODEL + "/ready", responses=errors(401, 403, 404, 422, 503))
@router.get(VERSION + "/ready", responses=errors(401, 403, 404, 422, 503), operation_id="ready_of_version")
async def model_ready(served: CurrentModel, service: CurrentService) -> Response:
    return JSONResponse({"name": served.name, "ready": not service.unready}, 503 if service.unready else 200)


@router.post(MODEL + "/infer", openapi_extra=BODY, responses=INFERS)
@router.post(VERSION + "/infer", openapi_extra=BODY, responses=INFERS, operation_id="infer_of_version")
async def infer(request: Request, served: CurrentModel, service: CurrentService) -> Response:
    """Returns the outputs of the model's task for each image, or features if the model has no head.

    A classifier gives `logits`, `probabilities` and `label`, and `unlikeness` if that is fitted. A detector gives `boxes` (left,
    top, right, bottom, in pixels of an
    `image`, or of the input), `scores` and `labels`, sorted by score; a score of 0 is no object. A segmenter gives `map`, the
    class of every pixel of the input.
    """
    preprocessing = served.model.preprocessing
    numbers = service.limits.images * preprocessing.channels * math.prod(preprocessing.size)
    # parsing numbers from JSON is slow
    inference = await asyncio.to_thread(parse_json, request.state.body, most=numbers + MAX_COMMAS)
    tensor, deadline = _parse_input(inference), request.state.deadline
    count = tensor["shape"][0]
    if count > service.limits.images:
        raise Refused("too_large", f"{count} images in one request", f"send at most {service.limits.images} at a time")
    work: Callable[..., Any] = served.features
    if served.model.classes:
        work = served.answer_normalised if tensor.get("name") == "images" else served.answer
    with service.batcher.reserve(count, work, deadline, request.state.expected):
        answers = await _run_model(service, served, tensor, work, deadline)
    arrays = served.encode(answers) if served.model.classes else {"features": np.stack(answers)}
    outputs = [
        {**_describe_array(name, array), "data": array if isinstance(array, list) else array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    outputs = _select_outputs(outputs, inference)
    named = {"id": inference["id"]} if isinstance(inference.get("id"), str) else {}
    return JSONResponse({"model_name": served.name, "model_version": served.version, **named, "outputs": outputs})


def _parse_input(inference: dict[str, Any]) -> dict[str, Any]:
    """Returns the single input after checking its shape. Raises `Refused`."""
    inputs = inference.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refused("bad_request", "'inputs' is not a list of one input", INPUTS)
    shape, data = inputs[0].get("shape"), inputs[0].get("data")
    whole = isinstance(shape, list) and all(type(side) is int and 0 < side < 2**20 for side in shape)
    if not whole or not shape or not isinstance(data, list):
        raise Refused("bad_request", "the input needs a shape of positive integers and a list of data", INPUTS)
    return inputs[0]


async def _run_model(
    service: Service, served: LoadedModel, tensor: dict[str, Any], work: Callable[..., Any], deadline: float
) -> list[Any]:
    """Returns the model's output for every image of the input. Raises `Refused` for the first invalid image."""
    name, kind = tensor.get("name"), tensor.get("datatype")
    if name == "image" and kind == "BYTES":
        data = tensor["data"]
        if tensor["shape"] != [len(data)]:
            raise Refused("bad_request", f"{len(data)} images do not match the shape {tensor['shape']}", INPUTS)
        uploads = await asyncio.to_thread(
            lambda: [Upload(None, decode_base64(item) if isinstance(item, str) else b"") for item in data]
        )
        answers = await service.run_each(served, work, uploads, deadline)
        if bad := [item for item in answers if isinstance(item, Refused)]:
            raise bad[0]
        return answers
    expected = {"pixels": "UINT8", "images": "FP32"}.get(str(name))
    if expected is None or kind != expected:
        raise Refused("bad_request", f"input {name!r} with datatype {kind!r} is not supported", INPUTS)
    if not served.model.classes:
        raise Refused("no_head", "the model has no head", "send 'image', or use /v1/embed")
    pictures = await asyncio.to_thread(_parse_pictures, served, str(name), tensor)
    try:
        return list(await asyncio.gather(*(service.batcher.run(work, item, deadline) for item in pictures)))
    except ArithmeticError as error:
        if name == "pixels":  # the network is at fault
            raise
        raise Refused("bad_request", "the outputs of an image are not finite", "send normalised images") from error


def _parse_pictures(served: LoadedModel, name: str, tensor: dict[str, Any]) -> list[Picture] | list[np.ndarray]:
    """Returns the data of an input as images (C, h, w). Raises `Refused` for a wrong shape or invalid numbers."""
    preprocessing = served.model.preprocessing
    (height, width), channels = preprocessing.size, preprocessing.channels
    shape = (height, width, channels) if name == "pixels" else (channels, height, width)
    if tuple(tensor["shape"][1:]) != shape:
        raise Refused("bad_request", f"the shape of {name!r} is not (N, {', '.join(map(str, shape))})", INPUTS)
    try:
        numbers = np.asarray(tensor["data"], np.float32).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused("bad_request", f"the data of {name!r} are not numbers", INPUTS) from error
    if numbers.size != math.prod(tensor["shape"]) or not np.isfinite(numbers).all():
        what = f"{numbers.size} numbers do not match the shape {tensor['shape']}, or are not finite"
        raise Refused("bad_request", what, INPUTS)
    numbers = numbers.reshape(-1, *shape)
    if name == "images":
        return list(numbers)
    if ((numbers < 0) | (numbers > 255) | (numbers % 1 != 0)).any():
        raise Refused("bad_request", "pixels must be integers from 0 to 255", INPUTS)
    pixels = np.ascontiguousarray(numbers.astype(np.uint8).transpose(0, 3, 1, 2))
    return [Picture(image) for image in pixels]


def _select_outputs(outputs: list[dict[str, Any]], inference: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the requested outputs, or all. Raises `Refused` for an unknown or repeated name."""
    wanted = inference.get("outputs")
    if wanted is None:
        return outputs
    by_name = {output["name"]: output for output in outputs}
    names = [output.get("name") for output in wanted if isinstance(output, dict)] if isinstance(wanted, list) else []
    is_known = all(isinstance(name, str) and name in by_name for name in names)
    if not is_known or not isinstance(wanted, list) or len({*names}) < len(wanted):
        raise Refused("bad_request", "unknown or repeated output name", f"the outputs are: {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _describe_tensor(name: str, kind: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": kind, "shape": list(shape)}


def _describe_array(name: str, array: np.ndarray | list[str]) -> dict[str, Any]:
    if isinstance(array, list):
        return _describe_tensor(name, "BYTES", len(array))
    return _describe_tensor(name, DATATYPES[array.dtype.name], *array.shape)
