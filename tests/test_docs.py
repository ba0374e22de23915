"""The code in docs/testing.md is run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peek import AdmissionPolicy, Cycle, PendingRequest
from peek.testing import check_policy

PAGE = Path(__file__).resolve().parent.parent / "docs" / "testing.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_the_page_runs(block: str) -> None:
    names: dict[str, object] = {"__name__": "a_users_test"}
    exec(compile(block, str(PAGE), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests or "assert " in block, "a block that proves nothing"
    for test in tests:
        assert callable(test)
        test()


def test_a_property_test_of_ones_own_policy_is_under_ten_lines() -> None:
    code = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(code) < 10
    assert any("check_policy" in line for line in code)


class ByName(AdmissionPolicy):
    def order(self, queue: list[PendingRequest], cycle: Cycle) -> list[PendingRequest]:
        return sorted(queue, key=lambda request: (-request.cached_len, request.request_id))


def test_the_message_is_the_one_the_page_shows() -> None:
    with pytest.raises(AssertionError) as caught:
        check_policy(ByName, examples=300)
    assert f"```text\nAssertionError: {caught.value}\n```" in TEXT
