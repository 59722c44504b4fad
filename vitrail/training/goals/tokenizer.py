"""A visual tokenizer, for BEiT."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.models.cost import saved_bytes
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.training.network import size_and_channels


def build_tokenizer(run: Run, train: Source) -> tuple[Run, Tokenizer, Preprocessing]:
    """A fresh tokenizer for the size and channels of the data, its patch that of `small-data` for small images."""
    if run.model.init is not None or run.model.name is not None:
        raise ConfigError("a tokenizer has no names and starts from nothing", "leave --model and --init out")
    native, own = size_and_channels(train)
    size, channels = run.model.size or native or (224, 224), run.data.channels or own or 3
    preprocessing = Preprocessing.paper(size, channels=channels).override(**run.model.preprocessing)
    patch = 16 if min(size) > 96 else 8 if min(size) > 40 else 4 if min(size) > 16 else 2
    changes = {"patch_size": (patch, patch), **run.model.changes}
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(TokenizerConfig.from_dict({**changes, "in_channels": channels}))
    return replace(run, model=replace(run.model, changes=changes)), tokenizer, preprocessing


def tokenizer_bytes(config: TokenizerConfig, preprocessing: Preprocessing) -> int:
    """Bytes that one image keeps for the backward pass."""
    with torch.device("meta"):
        sketched = Tokenizer(config)
    return saved_bytes(sketched, torch.empty(1, config.in_channels, *preprocessing.size, device="meta"))
