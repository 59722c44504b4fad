"""`vitrail check`."""

from __future__ import annotations

from vitrail.cli.output import AsJson


def check(export: str, /, *, json: AsJson = False) -> None:
    """Compare an export with the SHA-256 that `vitrail export` wrote beside it, for software that does not verify what it reads.

    `sha256sum --check NAME.sha256` does the same. The exit code is 4 for a file that is missing or was changed.

    Parameters
    ----------
    export
        A .onnx or .pt2 file with its .sha256 beside it.
    """
    from vitrail.cli.output import one_line
    from vitrail.exports.sidecar import check_export

    sums = check_export(export)
    print(one_line(sums) if json else "\n".join(f"whole    {name}  {sha256}" for name, sha256 in sums.items()))
