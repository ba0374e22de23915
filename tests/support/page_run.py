"""Runs the Python of a page that belongs to an engine, in a process of its own.

`python -m support.page_run ENGINE PAGE`, with `tests` and the engine's folder in `tests` on the path.
"""

from __future__ import annotations

import sys

from support.pages import ROOT, run_steps, steps_of


def main(engine: str, page: str) -> None:
    steps = [step for step in steps_of(ROOT / page) if step.suite == engine and step.kind != "console"]
    assert run_steps(steps, lambda step: None) > 0, "nothing to run"


if __name__ == "__main__":  # the processes that an engine spawns import this file
    main(*sys.argv[1:])
