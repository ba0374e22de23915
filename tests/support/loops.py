"""Runs tests that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec

Arguments = ParamSpec("Arguments")

LONGEST_S = 20
"""A test that takes longer hangs."""


def in_a_loop(test: Callable[Arguments, Coroutine[None, None, None]]) -> Callable[Arguments, None]:
    """Run an asynchronous test in an event loop of its own."""

    @wraps(test)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), LONGEST_S))

    return run
