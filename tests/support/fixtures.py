"""Types of pytest's fixtures, by short names."""

from __future__ import annotations

from typing import TypeAlias

import pytest

Capsys: TypeAlias = pytest.CaptureFixture[str]
Patch: TypeAlias = pytest.MonkeyPatch
