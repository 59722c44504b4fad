"""Uploading the files of a model to the Hugging Face hub, as one commit."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.errors import CheckpointError, ConfigError, VitrailError
from vitrail.runtime.progress import LogFunction
from vitrail.text import printable
from vitrail.weights.hub import NAME

# files by which tools open a repository
OPENED = re.compile(r".+\.(safetensors|bin|npz|h5|msgpack|onnx|gguf|pth?|ckpt|index\.json)|\w+_config\.json")


def parse_repository(repository: str) -> str:
    """Returns owner/name of ``hf:owner/name``. Raises `ConfigError` for anything else."""
    matched = NAME.fullmatch(repository)
    if matched is None or matched["revision"] or ".." in repository or repository.endswith(".git"):
        what = f"{printable(repository, 200)!r} is not the name of a repository that a model can be uploaded to"
        raise ConfigError(what, "give hf:owner/name, without a revision")
    return matched["name"]


def find_token() -> str:
    """Returns the token of the hub on this machine. Raises `ConfigError` if there is none, or the hub's client is offline."""
    from huggingface_hub import get_token
    from huggingface_hub.constants import is_offline_mode

    if is_offline_mode():
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing can be uploaded", "unset it, or give --dry-run")
    token, remedy = get_token(), "run: hf auth login, or set HF_TOKEN to a token that may write"
    if token is None:
        raise ConfigError("uploading needs a token of the hub, and there is none", remedy)
    if not (token.isascii() and token.isprintable()):  # the HTTP library would show it in its error
        raise ConfigError("the token of the hub has characters that no token has", remedy)
    return token


def upload(folder: Path, repository: str, *, private: bool, message: str, log: LogFunction) -> tuple[str, bool]:
    """Uploads the files of ``folder`` in one commit; files of the same names are replaced, others stay.

    Args:
        repository: ``owner/name``; it is created, with ``private`` as a private one, if it does not exist.
        log: called with a line on files of other tools that stay beside.

    Returns:
        The commit, and whether the repository is private.

    Raises:
        ConfigError: the hub refuses the token or the files, or a repository that is to be private is public.
        CheckpointError: the hub cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api, created = HfApi(token=find_token()), False
    files = {path.name: CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())}
    try:
        if not api.repo_exists(repository):
            api.create_repo(repository, private=private or None, exist_ok=True)
            created = True
        found = api.model_info(repository)
        if private and not found.private:
            remedy = "leave --private out, give another name, or make it private on its page of the hub first"
            raise ConfigError(f"the repository {repository} is public", remedy)
        others = {each.rfilename for each in found.siblings or ()} - files.keys()
        if beside := sorted(filter(OPENED.fullmatch, others)):
            log(f"warning  these files stay beside the model, and some tools may open them: {', '.join(beside)}")
        commit = api.create_commit(repository, files.values(), commit_message=message)
        return commit.oid, bool(found.private)
    except VitrailError:
        raise
    except Exception as error:  # the hub's client, its HTTP library and the disk raise many types
        raise _not_uploaded(repository, error, created=created) from error


def _not_uploaded(repository: str, error: Exception, *, created: bool) -> VitrailError:
    cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error  # of one of several files
    status = getattr(getattr(cause, "response", None), "status_code", None)
    line = printable(cause, 300) or type(cause).__name__
    what = f"nothing was uploaded to {repository}{', which was created and is empty' if created else ''}: {line}"
    if status in (401, 403, 404):
        return ConfigError(what, "check owner and name, and that your token may write there: hf auth whoami")
    if isinstance(cause, ValueError) or status in (400, 413, 422):
        return ConfigError(what, "correct what the hub refuses")
    return CheckpointError(what, "check the network, and run this again")
