"""The OpenAPI document: schemas of replies, bodies of requests, and errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from vitrail.serving.refusals import STATUS
from vitrail.tasks import TASKS

# a PNG of one grey pixel
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
IMAGE_ERRORS = ("bad_request", "unauthorised", "forbidden", "not_found", "too_slow", "too_large")
IMAGE_ERRORS += ("unsupported_media_type", "bad_image", "internal", "queue_full", "deadline")
MODEL_ERRORS = ("unauthorised", "forbidden", "not_found", "invalid")


class Schema(BaseModel):
    """A part of a reply without additional fields."""

    model_config = ConfigDict(extra="forbid")


class Fault(Schema):
    code: str = Field(examples=["bad_image"])
    message: str = Field(examples=["invalid image: not a JPEG, PNG, WebP, BMP, GIF or TIFF image"])
    remedy: str = Field("", examples=["send another file"])


class Error(Schema):
    """An error reply."""

    error: Fault
    request_id: str = Field(examples=["3f9c2a7be01d44c8"])


class ModelName(Schema):
    name: str = Field(examples=["flowers"])
    version: str = Field(examples=["3f9c2a7be01d"], description="hash of weights, preprocessing, classes, temperature")


class LayerMap(Schema):
    """The maps of a layer: one list of values per head, in row-major order."""

    layer: int | None
    heads: list[int] | None
    rows: int
    columns: int
    reach: list[float] = Field(description="height and width of the map relative to the box")
    values: list[list[float]]
    note: str | None = Field(description="for occlusion with fewer regions than usual: how many, and why")


class Explanation(Schema):
    method: str
    box: list[float] = Field(description="what the model sees: top, left, bottom, right in pixels of the picture")
    maps: list[LayerMap]


class AnyAnswer(BaseModel):
    name: str | None = Field(examples=["cat.jpg"])
    explanation: Explanation | None = None
    error: Fault | None = None


REPLIES: Any = {name: (kind | None, None) for task in TASKS.values() for name, kind in task.reply.items()}
Answer = create_model(
    "Answer",
    __base__=AnyAnswer,
    __doc__="The answer for one image, as the task of the model gives it. For an invalid image, only ``error`` is set.",
    **REPLIES,
)


class Predictions(Schema):
    model: ModelName
    task: str = Field(examples=list(TASKS))
    multi_label: bool
    predictions: list[Answer]  # type: ignore[valid-type]


class Embedding(Schema):
    name: str | None
    features: list[float] | None = None
    error: Fault | None = None


class Embeddings(Schema):
    model: ModelName
    embeddings: list[Embedding]


class Picture(Schema):
    """The picture after EXIF orientation, with at most 1,024 pixels on its longer side."""

    width: int
    height: int
    jpeg: str = Field(description="base64")


class ExplanationReply(Explanation):
    model: ModelName
    name: str | None
    prediction: dict[str, Any] | None = Field(description="as of /v1/predict; null for a model without a head")
    picture: Picture


class LayerAttention(Schema):
    heads: int
    map: list[int] = Field(description="rows and columns of the attention map")
    asks: str = Field(examples=["all", "class token"], description="the possible queries")
    reads: str = Field(examples=["class token", "patches"], description="the default query")


class AboutLimits(Schema):
    body_bytes: int
    pixels: int
    images: int
    deadline_seconds: float


class AboutModel(Schema):
    """Description of the model: configuration, classes, preprocessing, metrics and provenance."""

    name: str
    version: str
    source: str
    task: str = Field(examples=list(TASKS))
    sha256: str | None = Field(description="SHA-256 of the file; of a folder that of the hashes of its files")
    architecture: str
    image_size: list[int]
    channels: int
    parameters: int
    classes: list[str]
    multi_label: bool
    temperature: float | None = Field(description="null for a model that is no classifier")
    threshold: float | None = Field(description="least score of a detector's objects, if a request gives none")
    colours: list[str] | None = Field(description="colours of the classes of a detector or segmenter, #rrggbb")
    numerics: dict[str, Any] = Field(description="the model's config")
    preprocessing: dict[str, Any]
    metrics: dict[str, Any]
    metric_names: dict[str, str] = Field(description="what each of the metrics is called in a sentence")
    provenance: dict[str, Any]
    card: str | None = Field(description="Markdown")
    parity: dict[str, Any] | None = Field(description="comparison of an exported model with its source")
    attention: dict[str, list[LayerAttention]] | None = Field(description="the layers")
    feature_map: list[int] | None = Field(description="rows and columns of the last map; null for an exported graph")
    methods: list[str]
    limits: AboutLimits


class ReloadReply(Schema):
    model: ModelName
    previous: str = Field(description="the previous version")


def errors(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Returns the documented error responses of a route, given its error codes."""
    replies: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        entry = replies.setdefault(STATUS[code], {"model": Error, "description": code})
        if code not in entry["description"]:
            entry["description"] += f", {code}"
        if STATUS[code] == 503:
            entry["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    return replies


def replies(model: Any, *codes: str, also: int = 200, **more: Any) -> dict[int | str, dict[str, Any]]:
    """Returns the documented responses of a route: ``model`` for the statuses 200 and ``also``, and its errors."""
    return {200: {"model": model, **more}, also: {"model": model, **more}, **errors(*codes)}


def image_body(*, several: bool = True) -> dict[str, Any]:
    """Returns the documentation of a body with images: multipart, raw or JSON."""
    binary, base64 = {"type": "string", "format": "binary"}, {"type": "string", "format": "byte"}
    named = describe_object(name={"type": "string"}, data=base64)
    image = {"oneOf": [base64, {**named, "required": ["data"], "additionalProperties": False}]}
    json, form = describe_object(image=image), binary
    examples: dict[str, Any] = {"one image": {"value": {"image": PIXEL}}}
    if several:
        json = {"oneOf": [json, describe_object(images={"type": "array", "items": image, "minItems": 1})]}
        form = {"type": "array", "items": binary}
        examples["multiple, with names"] = {"value": {"images": [{"name": "grey.png", "data": PIXEL}, PIXEL]}}
    content = {
        "multipart/form-data": {"schema": describe_object(file=form)},
        "image/*": {"schema": binary},
        "application/json": {"schema": json, "examples": examples},
    }
    return {"requestBody": {"required": True, "content": content}}


def describe_object(**properties: Any) -> dict[str, Any]:
    """Returns the JSON schema of an object with these properties, which are all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}
