"""Runs an engine's own benchmark client again and again in one process: `python client.py ENGINE`.

It runs in the engine's environment, without this package.  It reads a line of JSON for each run, with
`arguments` of the client and the file for its `result`.  Then it writes a line: "done", or the error.  One
process, because a client takes a quarter of a minute to import.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def run_vllm(arguments: list[str], result: Path) -> None:
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    saved = ["--save-result", "--save-detailed", "--result-dir", str(result.parent)]
    chosen = parser.parse_args([*arguments, *saved, "--result-filename", result.name])
    asyncio.run(serve.main_async(chosen))


def run_sglang(arguments: list[str], result: Path) -> None:
    try:
        importlib.import_module("datasets")
    except ImportError:  # the client imports it for a data set that is not used here
        stand_in: Any = ModuleType("datasets")
        stand_in.load_dataset = None
        sys.modules["datasets"] = stand_in
    from sglang.benchmark import serving

    result.unlink(missing_ok=True)
    sys.argv = ["serving", *arguments, "--output-details", "--output-file", str(result)]
    serving.cli_main()


RUN = {"vllm": run_vllm, "sglang": run_sglang}


def main(engine: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the client prints goes to its log
    for line in sys.stdin:
        order = json.loads(line)
        said = "done"
        try:
            RUN[engine](order["arguments"], Path(order["result"]))
        except (Exception, SystemExit) as error:  # the caller must learn of any error
            said = f"{type(error).__name__}: {error}"
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
