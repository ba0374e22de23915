"""Tests on the real SGLang; without it, nothing here is collected (`make test-sglang` builds it)."""

from __future__ import annotations

import os
from pathlib import Path

from support.engine_conftest import hooks, installed

SGLANG = installed("sglang")
if SGLANG:  # tensors are tiny, and one eviction with a thread per core takes a thousand times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
globals().update(hooks(Path(__file__).parent, SGLANG))
