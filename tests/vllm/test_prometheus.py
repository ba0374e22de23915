"""A real Prometheus scrapes vLLM's real server, and is asked for all that the dashboard asks."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from support import dashboard
from support.alike_served import ask, controlled
from support.mixed import Asked, burst
from support.recipes import alarms
from support.served import all_at_once, say
from support.waiting import PATIENCE_S, free_port
from test_engine import pytestmark as needs_engine
from vllm_server import Server, VllmHost, flags_of

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus") or ""
pytestmark = [
    *needs_engine,
    pytest.mark.skipif(
        not PROMETHEUS, reason="no `prometheus` on the path, nor named by the variable PROMETHEUS"
    ),
]

# A busy engine shares its cores with whoever serves `/metrics`: in less time a scrape sees idle moments only.
CONFIG = """
global: {scrape_interval: 2s, scrape_timeout: 2s}
scrape_configs:
- job_name: engine
  static_configs: [{targets: ['TARGET']}]
"""
SIZES = flags_of({"num_gpu_blocks_override": 60, "max_model_len": 320, "max_num_seqs": 2})
NEVER_HERE = {"peek_retries_total", "peek_recoveries_total", "peek_policy_faults_total"}
"""What is 0 all the time: the next attempt after an error is a thousand calls away."""
BY_CHANCE = (
    "max_over_time(peek_waiting_requests[10m])",
    "max_over_time(peek_quarantined_waiting_requests[10m])",
    "max_over_time(histogram_quantile(0.5, sum by (le) (rate(peek_position_gain_bucket[5s])))[10m:1s])",
    "peek_fair_lane_admissions_total",
)
"""What a scrape sees only while somebody waits, and what depends on who came first."""
RING = {"PeekInactive": True, "PeekFallsBack": True, "PeekMispredicts": False}
"""What has come true in the end: a scheduler that is not active, after an error."""


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **what: Any) -> Any:
        with urlopen(f"{self.address}/api/v1/{path}?{urlencode(what, doseq=True)}", timeout=30) as answer:
            found = json.loads(answer.read())
        assert found["status"] == "success"
        return found["data"]

    def now(self, expression: str) -> float:
        """The sum over all series."""
        return math.fsum(float(one["value"][1]) for one in self.ask("query", query=expression)["result"])

    def series(self, expression: str, begin: float) -> list[list[float]]:
        """The values of each series since then, once a second."""
        found = self.ask("query_range", query=expression, start=begin, end=time.time(), step=1)["result"]
        return [[float(value) for _, value in one["values"]] for one in found]


@contextmanager
def scraping(folder: Path, target: str) -> Iterator[Prometheus]:
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.replace("TARGET", target))
    address = f"127.0.0.1:{free_port()}"
    command = [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as sink:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], cwd=folder, stdout=sink, stderr=sink
        )
    try:
        found = Prometheus(f"http://{address}")
        until(lambda: found.now("up") == 1)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with suppress(URLError):
            if true():
                return
        time.sleep(0.2)
    raise AssertionError(f"Prometheus has not seen it in {PATIENCE_S:.0f} s")


def live(server: Server, prometheus: Prometheus, folder: Path) -> None:
    """A life of an engine: busy with good and bad requests, in shadow, on, among strangers, with an error."""
    everybody = [asked for asked in burst(150) if asked.kind not in ("structured", "toolong")]
    for word in ("on", "shadow", "on"):
        say(folder, word)
        below = [*BY_CHANCE, "peek_shadow_prompt_tokens_total"] if word == "shadow" else list(BY_CHANCE)
        for _ in range(200):  # one burst after the other; a few are enough on an idle machine
            all_at_once(lambda asked: ask(server, asked), everybody)
            below = [asked for asked in below if prometheus.now(asked) <= 0]
            if not below:
                break
        assert not below, f"while {word}, no scrape has seen more than 0 of {below}"
        seen(server, prometheus)
    strangers = [Asked("text", place, f"text{place}", (700 + place,) * 64) for place in range(24)]
    all_at_once(lambda asked: ask(server, asked), strangers)
    seen(server, prometheus)
    (folder / "fail").touch()
    all_at_once(lambda asked: ask(server, asked), everybody)
    seen(server, prometheus)
    server.complete([7] * 64, 2, rid="last1")
    seen(server, prometheus)


def seen(server: Server, prometheus: Prometheus) -> None:
    """Wait until Prometheus has what the server shows now."""
    for name in ("peek_admitted_requests_total", "peek_fallbacks_total", "vllm:request_success_total"):
        until(lambda name=name: prometheus.now(name) == server.metric(name))  # type: ignore[misc]


def test_what_the_dashboard_asks_for_is_there(tmp_path: Path) -> None:
    # So that in a minute somebody is overdue, and single requests are left as they came.
    options = controlled(tmp_path, grace_tokens=2000, unshared="arrival")
    begin = time.time()
    with (
        VllmHost().serving(tmp_path, options, *SIZES, watched=True) as server,
        scraping(tmp_path, server.address.removeprefix("http://")) as prometheus,
    ):
        live(server, prometheus, tmp_path)
        for name, (series, label) in dashboard.variables().items():
            assert len(prometheus.ask(f"label/{label}/values", **{"match[]": series})) == 1, name
        for name, asked in dashboard.expressions("5s", "10m").items():
            values = [value for one in prometheus.series(asked, begin) for value in one]
            assert any(math.isfinite(value) for value in values), f"{name}: {asked}"
            if not any(never in asked for never in NEVER_HERE):
                assert any(value != 0 and math.isfinite(value) for value in values), f"{name}: {asked}"
        assert prometheus.now('peek_state{reason="internal error"}') == 1
        for name, rings in RING.items():
            assert bool(prometheus.ask("query", query=alarms()[name])["result"]) == rings, name
        keep(prometheus, begin)


def keep(prometheus: Prometheus, begin: float) -> None:
    """What was found, for `draw_dashboard.py`, where DASHBOARD_DATA names a file."""
    path = os.environ.get("DASHBOARD_DATA")
    if path:
        found = {
            name: prometheus.ask("query_range", query=asked, start=begin, end=time.time(), step=1)["result"]
            for name, asked in dashboard.expressions("5s", "10m").items()
        }
        Path(path).write_text(json.dumps(found))
