"""The peers live in an environment of their own; elsewhere these files are not even collected."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.register_assert_rewrite("tests.peers.oracles")  # so that what fails there shows its numbers
collect_ignore_glob = [] if find_spec("timm") else ["test_*.py"]
