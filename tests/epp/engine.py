"""A server that answers as an engine would and says who it is: `python engine.py PORT`.

A request names in `pause_s` how long its answer takes.  One with `stream` gets three events; with `stepwise`
each of them waits until somebody has posted to /go.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

NAME = f"127.0.0.1:{sys.argv[1]}"
GO = asyncio.Queue[None]()


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    told = request.headers.get("x-gateway-destination-endpoint", "")
    said = {"served": NAME, "told": told, "prompt_bytes": len(body["prompt"])}
    if not body.get("stream"):
        await asyncio.sleep(body.get("pause_s", 0.0))
        return web.json_response(said)
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-served": NAME})
    await response.prepare(request)
    for number in range(3):
        if body.get("stepwise"):
            await GO.get()
        else:
            await asyncio.sleep(body.get("pause_s", 0.0) / 3)
        await response.write(b"data: " + json.dumps({**said, "number": number}).encode() + b"\n\n")
    await response.write_eof()
    return response


async def go(_: web.Request) -> web.Response:
    GO.put_nowait(None)
    return web.Response()


async def models(_: web.Request) -> web.Response:
    return web.json_response({"served": NAME})


app = web.Application(client_max_size=2**26)
app.add_routes([web.post("/v1/completions", complete), web.post("/go", go), web.get("/v1/models", models)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, shutdown_timeout=1.0)
