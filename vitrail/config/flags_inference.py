"""The options of every verb that uses a model, once: name, type, default and help text; `flags_predicting` has those of
`vitrail predict` and `vitrail embed`, `flags_training` those that train.

`vitrail.train(batch=64)` and `vitrail train --batch 64` are both read from these tables. A table is a ``TypedDict``, so that
editors complete the options of a function that takes ``**flags: Unpack[TrainFlags]``; `vitrail.config.keywords` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from vitrail.untrusted.limits import PIXELS


@dataclass(frozen=True)
class Flag:
    """One option.

    Args:
        help: what it means, for ``--help`` and the docstring.
        default: what holds where it is not given; ``...`` where it must be given.
        setting: the setting of a `Run` that it stands for, as ``optim.lr``.
        word: its type on the command line, where a program may give more kinds of values.
        alias: the option that this is another name of; the command line does not have it.
        type: its type for a program; `keywords.flags_of` fills it in.
    """

    help: str
    default: Any = None
    setting: str = ""
    word: Any = None
    alias: str = ""
    type: Any = None


# options that several verbs have
Pixels = int | str | Sequence[int]
Classes = Annotated[
    str | Path | None,
    Flag("A text file with the class names, one per line, for weights without class names.", word=Path),
]
Device = Annotated[str | None, Flag("cuda, mps or cpu.", setting="compute.device")]
ResizedTo = Annotated[Pixels | None, Flag("The same as --crop.", word=str)]
Neighbours = Annotated[int, Flag("Neighbours that vote.", 20)]
Shots = Annotated[str | Sequence[int], Flag("Images per class, separated by commas.", "1,5,10,25", word=str)]
Cache = Annotated[
    bool | str | Path,
    Flag("Cache the features in VITRAIL_CACHE, or ~/.cache/vitrail/features.", True, word=bool),
]
BadList = Annotated[str | Path | None, Flag("A CSV of the images that could not be read, with the reason.", word=Path)]
Zoom = Annotated[
    float,
    Flag(
        "Show pictures this many times as large to a detector or a segmenter, in overlapping windows: for small objects.",
        1.0,
    ),
]
Quiet = Annotated[bool, Flag("No progress.", False)]


class WeightsFlags(TypedDict, total=False):
    """What weights do not state themselves."""

    classes: Classes
    crop: Annotated[
        Pixels | None,
        Flag(
            "Input size of the network in pixels, as 384 or 384x256 (height x width); positions are resized.", word=str
        ),
    ]
    grid: Annotated[
        str | Sequence[int] | None,
        Flag("Rows x columns of patches of the positions, as 4x9, for weights that do not state them.", word=str),
    ]
    resize: Annotated[
        int | str | None, Flag("Pixels of the shorter side before the crop, or squash, fit or none.", word=str)
    ]
    mean: Annotated[
        str | Sequence[float] | None,
        Flag("Mean of the channels, of values in [0, 1]: 0.485,0.456,0.406.", word=str),
    ]
    std: Annotated[
        str | Sequence[float] | None, Flag("Standard deviation of the channels, in the same form.", word=str)
    ]
    pixel_range: Annotated[
        str | Sequence[float] | None,
        Flag("Values of 16-bit and float images that become black and white: 0,4095.", word=str),
    ]


class ModelFlags(WeightsFlags, total=False):
    """How a model is read."""

    device: Device
    precision: Annotated[Literal["fp32", "bf16"], Flag("fp32 or bf16.", "fp32")]


class ImageFlags(ModelFlags, total=False):
    """How a model and its images are loaded."""

    batch: Annotated[int, Flag("Images per batch; it does not change the results.", 64)]
    workers: Annotated[int, Flag("Processes that read images.", 0)]
    max_bad: Annotated[
        str | float | None,
        Flag(
            "Largest share of bad images before the run stops; 1% by default, 100% for predict, embed and explain.",
            word=str,
        ),
    ]
    max_pixels: Annotated[int, Flag("Largest width x height of an image file; a larger one is bad.", PIXELS)]
    quiet: Quiet


class ManyFlags(ImageFlags, total=False):
    """How a model is applied to many images."""

    tune: Annotated[
        bool, Flag("On a CPU take the way to compute that is fastest, and measure it if it saves time.", True)
    ]


class EvaluateFlags(ManyFlags, total=False):
    """`vitrail evaluate`."""

    split: Annotated[
        Literal["train", "val", "test"] | None,
        Flag(
            "The split to evaluate; by default test, else val, else the part that was held out when the model was trained."
        ),
    ]
    sha256: Annotated[
        str | None,
        Flag("Evaluate only the weights with this SHA-256; of a folder that of `sha256sum * | sha256sum` in it."),
    ]
    calibrate: Annotated[bool, Flag("Fit a temperature on this split and store it with the model.", False)]
    bad_list: BadList
    class_map: Annotated[
        str | Path | None,
        Flag("A CSV file without header, `class of the data,class of the model`, for data of other classes; classes that it "
             "does not name are left out.", word=Path),
    ]  # fmt: skip
    restrict: Annotated[
        bool, Flag("Predict only classes that occur in the labels, e.g. for a subset of ImageNet.", False)
    ]
    out: Annotated[str | Path | None, Flag("A folder for report.html, its charts and figures.json.", word=Path)]
    zoom: Zoom
    corruptions: Annotated[bool, Flag("Also evaluate on eight kinds of corruption at five levels.", False)]


class ProtocolFlags(TypedDict, total=False):
    """Of `vitrail probe`."""

    protocol: Annotated[
        Literal["linear", "knn", "fewshot"],
        Flag("linear (logistic regression), knn (nearest neighbours) or fewshot (least squares on a few images of each "
             "class).", "linear"),
    ]  # fmt: skip


class ProbeFlags(ManyFlags, total=False):
    """`vitrail probe`."""

    k: Neighbours
    shots: Shots
    seeds: Annotated[int, Flag("Number of random draws of the shots.", 5)]
    against: Annotated[Any, Flag("Another model to compare with on the same images.", word=str)]
    cache: Cache


class TransferFlags(ManyFlags, total=False):
    """`vitrail transfer`."""

    protocols: Annotated[
        str | Sequence[str],
        Flag("Protocols, separated by commas.", "knn,linear,fewshot,finetune", word=str),
    ]
    vtab: Annotated[
        bool,
        Flag(
            "The data are a folder with one folder for each task of VTAB-1k: trained on 1,000 images, judged on test.",
            False,
        ),
    ]
    k: Neighbours
    shots: Shots
    epochs: Annotated[
        float | None,
        Flag("Epochs of fine-tuning; by default those of the recipe finetune, or with --vtab paper-finetune/vtab."),
    ]
    steps: Annotated[int | None, Flag("Updates of fine-tuning, instead of epochs.")]
    seeds: Annotated[int, Flag("Fine-tuning runs per data set; the result is their mean.", 1)]
    set: Annotated[
        Sequence[str] | None, Flag("One setting of the fine-tuning, e.g. --set optim.lr=1e-4.", word=list[str])
    ]
    cache: Cache


class TransferOutFlags(TypedDict, total=False):
    """Of `vitrail transfer`."""

    out: Annotated[
        str | Path,
        Flag(
            "The folder for report.html, transfer.csv, .json and .md, and the runs of the fine-tuning.", ..., word=Path
        ),
    ]


class ExplainFlags(ImageFlags, total=False):
    """`vitrail explain`."""

    out: Annotated[
        str | Path | None, Flag("The folder for overlays (.png), heads (.png), numbers (.npz and .json).", word=Path)
    ]
    method: Annotated[
        Literal["attention", "rollout", "gradient", "occlusion"],
        Flag(
            "attention of one layer; rollout through all layers; gradient-weighted relevance; occlusion.", "attention"
        ),
    ]
    layer: Annotated[
        int,
        Flag("Attention layer from 0, or from the end with -1; other methods use it for the sheet of heads only.", -1),
    ]
    head: Annotated[
        int | str,
        Flag("With --method attention: a head from 0, mean, or all for an overlay of each head.", "mean", word=str),
    ]
    target: Annotated[
        str | None,
        Flag("The class to explain, by name: by default the predicted one, of a segmenter the largest."),
    ]
    box: Annotated[
        int | None,
        Flag("Of a detector: the object to explain, from 0 as `vitrail predict` lists them; by default the best one."),
    ]
    faithfulness: Annotated[
        bool, Flag("Evaluate all methods by deletion and insertion instead, and print the table.", False)
    ]
    masks: Annotated[
        str | Path | None,
        Flag(
            "A folder with a mask of the objects for each image, PNG by the same name: print how much attention lies inside.",
            word=Path,
        ),
    ]


class InspectFlags(ImageFlags, total=False):
    """`vitrail inspect`."""

    out: Annotated[str | Path, Flag("The folder for report.html, numbers.json and the pictures.", ..., word=Path)]
    data: Annotated[
        Any,
        Flag("Images to analyse, labelled or not: what `vitrail train` takes, or a folder of images.", word=str),
    ]
    most: Annotated[int, Flag("Largest number of images, spread evenly over the data.", 512)]
    against: Annotated[
        Any,
        Flag(
            "Another model, beside the first on one page: heads, findings, positions and filters of both, with their "
            "differences.",
            word=str,
        ),
    ]
    cost: Annotated[
        bool,
        Flag(
            "Also measure time and memory at larger image sizes; of several models, compare images per second and the "
            "largest batch.",
            False,
        ),
    ]
    sizes: Annotated[
        str | Sequence[Any] | None,
        Flag("Image sizes of the comparison, as 64,128,224x160; 64 to 512 by default.", word=str),
    ]
    cost_batch: Annotated[
        int | None,
        Flag("Images per timed pass of the comparison; 64 by default, and 8 on a CPU, fewer if they do not fit."),
    ]


class LayoutFlags(TypedDict, total=False):
    """Of `vitrail convert`."""

    to: Annotated[
        Literal["native", "google", "timm", "huggingface"] | None,
        Flag("The layout: vitrail's own, Google's, timm's, or that of Hugging Face transformers."),
    ]


class ConvertFlags(WeightsFlags, total=False):
    """`vitrail convert`."""

    diff: Annotated[
        bool,
        Flag("Compare the two, tensor by tensor; the exit code is 0 if they are equal and 1 if not.", False),
    ]
    force: Annotated[bool, Flag("Convert even if the layout cannot express some numerics of the model.", False)]
    size: ResizedTo
    channels: Annotated[int | None, Flag("Number of input channels; the first layer is adapted.")]
    head: Annotated[
        str | Path | Sequence[str] | None,
        Flag(
            "A text file with new class names, one per line; the head is replaced by a zero-initialised one.", word=Path
        ),
    ]


class ExportToFlags(TypedDict, total=False):
    """Of `vitrail export`."""

    out: Annotated[
        str | Path | None, Flag("Output file; by default named after the model, in the current folder.", word=Path)
    ]
    to: Annotated[
        Literal["onnx", "program", "huggingface", "timm", "google"],
        Flag("onnx; program (.pt2, of torch.export); or a layout of weights, as `vitrail convert` writes it.", "onnx"),
    ]


class ExportFlags(WeightsFlags, total=False):
    """`vitrail export`."""

    int8: Annotated[bool, Flag("8-bit weights: a third of the size, and faster on a CPU (ONNX).", False)]
    pictures: Annotated[
        bool,
        Flag("Include the preprocessing: the graph takes uint8 images of any size (ONNX).", False),
    ]
    check: Annotated[
        Any,
        Flag("Images for the comparison, as `vitrail train` takes them; with labels, accuracies are compared too. By default "
             "images are generated.", word=str),
    ]  # fmt: skip
    images: Annotated[int | None, Flag("Largest number of images for the comparison, spread evenly; 300 by default.")]
    tolerance: Annotated[
        float | None,
        Flag("Largest accepted difference: of an output relative to the largest output, 0.0001; with --int8 or --pictures of "
             "the accuracy, 0.02, or without labels the share of changed predictions, 0.05."),
    ]  # fmt: skip
    size: ResizedTo
    max_bad: Annotated[str | float, Flag("Largest share of bad images.", "1%", word=str)]
    force: Annotated[
        bool,
        Flag("Overwrite a file that is not an export; convert even if the layout cannot express some numerics.", False),
    ]  # fmt: skip
    quiet: Quiet


class ServeFlags(ModelFlags, total=False):
    """`vitrail serve`."""

    runs: Annotated[
        str | Path | None, Flag("A folder of run directories, which the page lists with their curves.", word=Path)
    ]
    host: Annotated[
        str, Flag("Address to listen on. A token is required for addresses that other machines can reach.", "127.0.0.1")
    ]
    port: Annotated[int, Flag("Port to listen on; 0 chooses a free port. The address is printed.", 8000)]
    name: Annotated[str | None, Flag("Name of the model for clients; by default that of its run, folder or file.")]
    token_file: Annotated[
        str | Path | None,
        Flag(
            "A file with the token that clients must send; by default the environment variable VITRAIL_TOKEN.",
            word=Path,
        ),
    ]
    allow_host: Annotated[
        Sequence[str] | None,
        Flag("Accepted host name of requests, e.g. the public name behind a proxy. May be repeated.", word=list[str]),
    ]  # fmt: skip
    max_batch: Annotated[int, Flag("Largest batch size.", 16)]
    queue: Annotated[int, Flag("Images that may wait; further requests are answered with 503.", 64)]
    deadline: Annotated[float, Flag("Seconds after which a request is answered with 504.", 10.0)]
    max_body: Annotated[int, Flag("Largest size of a request in MiB.", 32)]
    tune: Annotated[
        bool, Flag("On a CPU take the way to compute that is fastest, measured in 3 seconds at the start.", True)
    ]
    drain: Annotated[float, Flag("Seconds to finish open requests after the signal to stop.", 25.0)]
    access_log: Annotated[bool, Flag("Log a line on stderr for every request.", False)]


class ModelsFlags(TypedDict, total=False):
    """`vitrail models`."""

    size: Annotated[int | None, Flag("Image size in pixels; by default that of each model.")]
    classes: Annotated[int, Flag("Number of classes of the counted head.", 1000)]


class SettingsFlags(TypedDict, total=False):
    """`vitrail settings`."""

    recipe: Annotated[str, Flag("The recipe whose values are shown.", "small-data")]
