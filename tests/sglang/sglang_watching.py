"""A plug-in of SGLang for the tests of its server: notes what a scheduler does, and has it go wrong.

It is an entry point in the group `sglang.srt.plugins`, as `peek` is.  In the folder WATCH_FOLDER:

- `admitted-RANK` gets a line for each batch that `get_new_batch_prefill` makes: the mode of `peek`, and the
  ids of the requests.
- While there is a file `hold`, who arrives is held back; once as many have come as it says, they enter the
  queue sorted by the digits of their ids.
- A file `fail` makes the next call of the adapter raise.

Of an id that begins with `image`, the tokens PAD become a pad of 62 bits, as SGLang puts it in the place of
an image; of one that begins with `spoilt`, one token becomes negative.  The model clamps both, as SGLang's
multimodal models do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PAD = 999
WIDE = 2**62 - 12345
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
MODEL = "sglang.srt.models.llama.LlamaForCausalLM"


def digits(rid: str) -> int:
    return int("".join(filter(str.isdigit, rid)) or 0)


def spoil(rid: str, tokens: Any) -> None:
    """Put into a prompt what no client could send."""
    if rid.startswith("spoilt"):
        tokens[5] = -1 - digits(rid)
    elif rid.startswith("image"):
        for place, token in enumerate(tokens):
            if token == PAD:
                tokens[place] = WIDE


def raise_injected(*_: Any) -> bool:
    raise RuntimeError("injected")


class Watcher:
    """What stands around one scheduler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held: list[Any] = []

    def prefill(self, stock: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        beside, fail = scheduler.policy.peek, self.folder / "fail"
        if fail.exists() and beside.adapter is not None:
            fail.unlink()
            beside.adapter.order = raise_injected
        found = stock(scheduler, *args, **kwargs)
        batch = getattr(found, "batch_to_run", found)
        if batch is not None:
            with (self.folder / f"admitted-{beside.about.tp_rank}").open("a") as file:
                print(beside.mode, *(request.rid for request in batch.reqs), file=file)
        return found

    def enter(self, stock: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        spoil(request.rid, request.origin_input_ids)
        hold = self.folder / "hold"
        if args or kwargs or not hold.exists():  # with arguments it is one that was retracted
            stock(scheduler, request, *args, **kwargs)
            return
        self.held.append(request)
        if len(self.held) >= int(hold.read_text()):
            hold.unlink()
            for one in sorted(self.held, key=lambda one: digits(one.rid)):
                stock(scheduler, one)
            self.held.clear()


def clamp(model: Any, input_ids: Any, *_: Any, **__: Any) -> None:
    input_ids.clamp_(0, model.config.vocab_size - 1)


def register() -> None:
    folder = os.environ.get("WATCH_FOLDER")
    if folder:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        watcher = Watcher(Path(folder))
        HookRegistry.register(f"{SCHEDULER}.get_new_batch_prefill", watcher.prefill, HookType.AROUND)
        HookRegistry.register(f"{SCHEDULER}._add_request_to_queue", watcher.enter, HookType.AROUND)
        HookRegistry.register(f"{MODEL}.forward", clamp, HookType.BEFORE)
