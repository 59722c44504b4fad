"""`vitrail serve`."""

from __future__ import annotations

from typing import Unpack

from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_inference import ServeFlags


@takes_flags(ServeFlags)
def serve(model: str | None = None, /, **flags: Unpack[ServeFlags]) -> None:
    """Answer over HTTP, with a page for people: predictions, features, explanations, and runs while they train.

    SIGTERM finishes the pending requests and stops; SIGHUP reloads the model.

    Parameters
    ----------
    model
        A run directory, `latest`, a model folder, weights (.safetensors, .pth, .npz), hf:owner/name, or an exported
        .onnx; with --runs it may be left out.
    """
    from vitrail.runtime.process import use_all_cores, use_one_arena
    from vitrail.workflows.api import serve as run

    use_one_arena()
    use_all_cores()
    run(model, **flags)
