"""What an operator sees and does on vLLM's real server: the log, /metrics, the live switch, an error."""

from __future__ import annotations

from pathlib import Path

from test_engine import BLOCK, pytestmark
from test_server import complete, get, metric, serving

__all__ = ["pytestmark"]

BREAKABLE = '''
"""A scheduler whose adapter fails in its next step once there is a file."""
from pathlib import Path
from peek.adapters.vllm import PeekScheduler


def fail():
    raise RuntimeError("injected")


class Scheduler(PeekScheduler):
    def schedule(self, *args, **kwargs):
        order = Path({path!r})
        if order.exists() and self.peek.adapter is not None:
            order.unlink()
            self.peek.adapter.before_schedule = fail
        return super().schedule(*args, **kwargs)
'''


def test_seen_switched_and_contained(tmp_path: Path) -> None:
    control, failure = tmp_path / "mode", tmp_path / "fail"
    (tmp_path / "breakable.py").write_text(BREAKABLE.format(path=str(failure)))
    options = {"policy": "peek", "control_file": str(control), "control_every": 1, "explain": 10}
    with serving(tmp_path, "breakable.Scheduler", options) as address:

        def serve() -> float:
            """Serve one request; whether peek is active then."""
            assert complete(address, [7] * (2 * BLOCK), 2)["usage"]["completion_tokens"] == 2
            return metric(address, "peek_active")

        assert serve() == 1
        names = {line.split("{")[0] for line in get(f"{address}/metrics").splitlines() if line[:5] == "peek_"}
        assert len(names) >= 12
        assert metric(address, "peek_admitted_requests_total") == 1
        for word, active in (("off", 0), ("on", 1), ("shadow", 0), ("on", 1)):
            control.write_text(word)
            assert serve() == active, word
        assert metric(address, "peek_fallbacks_total") == 0
        failure.touch()
        assert serve() == 0
        assert metric(address, "peek_fallbacks_total") == 1
        assert serve() == 0
        lines = get(f"{address}/metrics").splitlines()
        assert [line.split()[-1] for line in lines if 'reason="internal error"' in line] == ["1.0"]
    log = (tmp_path / "server.log").read_text()
    assert log.count("peek: active; vllm") == 2  # at start, and when it was switched on again
    assert "peek: switched from on to off" in log
    assert "RuntimeError: injected" in log
    assert "tries again after 1000 calls" in log
    assert 'peek: admitted {"request_id": ' in log
