"""Reordering never loses on the offline workloads, and wins where prompts share and the cache is small."""

from __future__ import annotations

import pytest
from support.offline_texts import TEXTS, WORKLOADS, workload

from peek.offline import reorder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TEXTS.is_dir(), reason="no shared/data/text next to the checkout"),
]

LEAST_GAIN = {
    "system prompts": 0.6,
    "few-shot": 0.05,
    "mixed traffic": 0.3,
    "multi-turn": 0.5,
    "code completion": 0.5,
    "summarisation": 0.5,
    "multi-agent": 0.3,
    "legal RAG": 0.2,
    "enterprise search": 0.1,
}
"""Rise of the hit ratio; 0 where not named."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload(name: str) -> None:
    batch, cache_tokens = workload(name)
    result = reorder(batch, cache_tokens=cache_tokens)
    assert result.expected_hit_before is not None
    assert result.expected_hit_after is not None
    assert result.expected_hit_after >= result.expected_hit_before + LEAST_GAIN.get(name, 0.0)
    if name in ("no sharing", "diverse singletons"):
        assert result.order == list(range(len(batch)))
