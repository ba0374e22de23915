"""The metrics of a fleet, as a scrape over HTTP gets them, beside what the fleet itself says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
from support.waiting import PATIENCE_S, free_port

from peek import PendingRequest
from peek.adapters.fleet_metrics import COUNTERS, DECISION_SECONDS, METRICS, REPLICA, FleetMetrics
from peek.errors import QueueFull
from peek.fleet import FleetConfig, FleetPlanner

client = pytest.importorskip("prometheus_client", reason="metrics need prometheus_client")

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fleet.md"


class Scraped:
    """A fleet of two replicas, and the server that shows its metrics."""

    def __init__(self) -> None:
        self.fleet = FleetPlanner(FleetConfig(window_requests=1, window_tokens=0, max_waiting=4))
        self.seconds = iter(float(second) for second in range(1_000))
        self.metrics = FleetMetrics(self.fleet, timer=lambda: next(self.seconds) * 3e-5)
        registry = client.CollectorRegistry()
        registry.register(self.metrics)
        self.server, self.thread = client.start_http_server(0, addr="127.0.0.1", registry=registry)
        for name in ("a", "b"):
            self.fleet.join(name)

    def series(self) -> dict[tuple[str, ...], float]:
        """Values by the name of a sample and the values of its labels."""
        from prometheus_client.parser import text_string_to_metric_families

        with urlopen(f"http://127.0.0.1:{self.server.server_port}/metrics", timeout=PATIENCE_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_limits_of_buckets_are_round_so_that_queries_can_name_them() -> None:
    assert sorted(set(DECISION_SECONDS)) == list(DECISION_SECONDS)
    assert {f"{limit:.3e}".partition("e")[0] for limit in DECISION_SECONDS} == {"1.000", "2.500", "5.000"}


@pytest.fixture
def scraped() -> Any:
    made = Scraped()
    yield made
    made.close()


def busy(fleet: FleetPlanner, metrics: FleetMetrics) -> None:
    """Six arrivals, one refused; one is answered, one given up, one replica is lost."""
    for number in range(6):
        with metrics.deciding():
            fleet.add(PendingRequest(f"r{number}", [number] * 40, 0.0), 10)
            fleet.dispatch(0.0)
    with suppress(QueueFull), metrics.deciding():
        fleet.add(PendingRequest("more", [9], 0.0))
    with metrics.deciding():
        fleet.finished("r0", next(each.name for each in fleet.status() if fleet.finished("r0", each.name)))
        fleet.cancel("r5")
        fleet.lost("a")


def test_a_scrape_says_what_the_fleet_says(scraped: Scraped) -> None:
    busy(scraped.fleet, scraped.metrics)
    series = scraped.series()
    stats, status = scraped.fleet.stats.as_dict(), scraped.fleet.status()
    assert stats["added"] == 6, "seven came, one was refused"
    assert stats["refused"] == stats["finished"] == stats["cancelled"] == 1
    for field, metric in COUNTERS.items():
        assert series[f"{metric.name}_total",] == stats[field], field
    for each in status:
        for field, metric in REPLICA.items():
            assert series[metric.name, each.name] == getattr(each, field)
    assert ("peek_fleet_accepting", "a") not in series, "a replica that is gone"
    assert series["peek_fleet_waiting_requests",] == len(scraped.fleet) > 0
    assert series["peek_fleet_window_requests",] == 1
    assert (series["peek_fleet_active",], series["peek_fleet_fallbacks_total",]) == (1, 0)


def test_decisions_are_timed_also_those_that_fail(scraped: Scraped) -> None:
    busy(scraped.fleet, scraped.metrics)
    series = scraped.series()
    assert series["peek_fleet_decision_seconds_count",] == 8
    assert series["peek_fleet_decision_seconds_sum",] == pytest.approx(8 * 3e-5)
    buckets = [series["peek_fleet_decision_seconds_bucket", str(bound)] for bound in DECISION_SECONDS]
    assert buckets == [0, 0, *[8] * (len(DECISION_SECONDS) - 2)]


def test_imbalance_is_the_longest_backlog_over_the_mean(scraped: Scraped) -> None:
    assert scraped.series()["peek_fleet_imbalance",] == 1
    scraped.fleet.place(PendingRequest("r", list(range(100)), 0.0))
    assert scraped.series()["peek_fleet_imbalance",] == 2


def test_a_fallback_is_shown(scraped: Scraped) -> None:
    scraped.metrics.fell_back()
    series = scraped.series()
    assert (series["peek_fleet_active",], series["peek_fleet_fallbacks_total",]) == (0, 1)


def test_after_a_fallback_no_load_stands_still(scraped: Scraped) -> None:
    """The fleet never hears that what it has ends."""
    for name in "rst":
        scraped.fleet.add(PendingRequest(name, [1, 2, 3], 0.0))
    scraped.fleet.dispatch(0.0)
    series = scraped.series()
    assert series["peek_fleet_waiting_requests",] + series["peek_fleet_under_way_requests", "a"] > 1
    assert series["peek_fleet_imbalance",] > 1
    scraped.metrics.fell_back()
    series = scraped.series()
    assert (series["peek_fleet_waiting_requests",], series["peek_fleet_imbalance",]) == (0, 1)
    assert not {"a", "b"} & {label for _, *labels in series for label in labels}
    assert series["peek_fleet_requests_total",] == 3


def test_a_scrape_waits_until_a_decision_is_made(scraped: Scraped) -> None:
    found: list[Any] = []
    with scraped.metrics.deciding():
        scrape = Thread(target=lambda: found.append(scraped.series()))
        scrape.start()
        scrape.join(0.2)
        assert scrape.is_alive()
    scrape.join(20)
    assert found[0]["peek_fleet_waiting_requests",] == 0


def test_every_metric_is_scraped_and_on_the_page(scraped: Scraped) -> None:
    families = {family.name: family for family in scraped.metrics.collect()}
    page = PAGE.read_text(encoding="utf-8")
    assert list(families) == [metric.name for metric in METRICS]
    for metric in METRICS:
        assert (families[metric.name].type, families[metric.name].documentation) == (metric.kind, metric.text)
        series = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        labels = f" (`{metric.labels[0]}`)" if metric.labels else ""
        assert f"| `{series}`{labels} | {metric.kind} | {metric.text} |" in page


# -- in verl's balancer --------------------------------------------------------------------------------------


def test_verls_balancer_serves_its_metrics() -> None:
    import asyncio

    from peek.adapters.verl.load_balancer import FleetLoadBalancer

    port = free_port()

    async def scenario() -> str:
        lb = FleetLoadBalancer({"s0": "here"}, {"metrics_port": port})
        await lb.acquire_server("a", prompt_ids=[1, 2, 3])
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    text = asyncio.run(scenario())
    assert "peek_fleet_dispatched_requests_total 1.0" in text
    assert "peek_fleet_decision_seconds_count 2.0" in text  # to join, and to send
    assert 'peek_fleet_under_way_requests{replica="s0"} 1.0' in text
    assert 'peek_fleet_queued_requests{replica="s0"} 1.0' in text  # verl tells of no first token
