"""Options that only the command line has."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(negative="", help="One JSON object on the last line of stdout.")]
