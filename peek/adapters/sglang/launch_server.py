"""`python -m sglang.launch_server` with `peek` for SGLang before 0.5.11; newer ones load it themselves."""

from __future__ import annotations

import os
import runpy
import sys
from importlib.util import find_spec

from peek.adapters.sglang.plugin import configured_or_exit, run_scheduler_process


def main() -> None:
    """Serve until the process ends."""
    if find_spec("sglang.srt.plugins") is not None:
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
        return
    configured_or_exit()
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        arguments = prepare_server_args(sys.argv[1:])
        launch_server(arguments, run_scheduler_process_func=run_scheduler_process)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
