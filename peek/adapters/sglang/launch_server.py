"""`python -m peek.adapters.sglang.launch_server ...` is `python -m sglang.launch_server ...` with `peek`.

For SGLang before 0.5.11, which has no plug-ins.  Later versions load `peek` themselves; there both are equal.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from peek.adapters.sglang.plugin import configured_or_exit, run_scheduler_process


def main(arguments: list[str]) -> None:
    """Serve until the process ends; `arguments` are those of `sglang.launch_server`."""
    configured_or_exit()
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    has_plugins = find_spec("sglang.srt.plugins") is not None
    if has_plugins:
        from sglang.srt.plugins import load_plugins

        load_plugins()
    server_args = prepare_server_args(arguments)
    try:
        if has_plugins:
            from sglang.launch_server import run_server

            run_server(server_args)
        else:
            from sglang.srt.entrypoints.http_server import launch_server

            launch_server(server_args, run_scheduler_process_func=run_scheduler_process)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
