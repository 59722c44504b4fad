"""The replies of the server as the documentation of its routes shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Score = Field(ge=0, le=1, examples=[0.81])


class Schema(BaseModel):
    """A part of a reply, with exactly these fields."""

    model_config = ConfigDict(extra="forbid")


class Fault(Schema):
    code: str = Field(examples=["bad_image"])
    message: str = Field(examples=["the image cannot be used: not a JPEG, PNG, WebP, BMP, GIF or TIFF image"])
    remedy: str = Field("", examples=["send another file"])


class Error(Schema):
    """Why there is no answer."""

    error: Fault
    request_id: str = Field(examples=["3f9c2a7be01d44c8"])


class ModelName(Schema):
    name: str = Field(examples=["flowers"])
    version: str = Field(examples=["3f9c2a7be01d"], description="of weights, preprocessing and classes")


class Ranked(Schema):
    label: str = Field(examples=["tabby"])
    score: float = Score


class LayerMap(Schema):
    """What is looked at, row by row of the map; one list of values a head."""

    layer: int | None
    heads: list[int] | None
    rows: int
    columns: int
    reach: list[float] = Field(description="how many times as high and as wide as the box the map is")
    values: list[list[float]]


class Explanation(Schema):
    method: str
    box: list[float] = Field(description="top, left, bottom, right of what the model sees, in pixels of the picture")
    maps: list[LayerMap]


class Answer(Schema):
    """The prediction for one image; for an image that cannot be used only ``error`` is set."""

    name: str | None = Field(examples=["cat.jpg"])
    label: str | None = None
    score: float | None = None
    top: list[Ranked] | None = None
    explanation: Explanation | None = None
    error: Fault | None = None


class Predictions(Schema):
    model: ModelName
    multi_label: bool
    predictions: list[Answer]


class Embedding(Schema):
    name: str | None
    features: list[float] | None = None
    error: Fault | None = None


class Embeddings(Schema):
    model: ModelName
    embeddings: list[Embedding]


class Picture(Schema):
    """The whole picture, upright, with at most 1,024 pixels on its longer side."""

    width: int
    height: int
    jpeg: str = Field(description="base64")


class Ranking(Schema):
    label: str
    score: float = Score
    top: list[Ranked]


class ExplanationReply(Explanation):
    model: ModelName
    name: str | None
    prediction: Ranking | None = Field(description="None of a model without a head")
    picture: Picture


class LayerAttention(Schema):
    heads: int
    map: list[int] = Field(description="rows and columns of its places")
    asks: str = Field(examples=["all", "class token"])
    reads: str = Field(examples=["class token", "patches"], description="who asks unless a place is given")


class AboutLimits(Schema):
    body_bytes: int
    pixels: int
    images: int
    deadline_seconds: float


class Attention(Schema):
    layers: list[LayerAttention]


class AboutModel(Schema):
    """What the model is, what it was trained for and how well it did."""

    name: str
    version: str
    source: str
    architecture: str
    image_size: list[int]
    channels: int
    parameters: int
    classes: list[str]
    multi_label: bool
    temperature: float
    numerics: dict[str, Any] = Field(description="the model's config")
    preprocessing: dict[str, Any]
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    card: str | None = Field(description="Markdown")
    parity: dict[str, Any] | None = Field(description="of an export: how it was compared with its source")
    attention: Attention | None
    methods: list[str]
    limits: AboutLimits


class ReloadReply(Schema):
    model: ModelName
    previous: str = Field(description="the version before")


class Readiness(Schema):
    ready: bool
    reason: str


class Liveness(Schema):
    alive: bool
