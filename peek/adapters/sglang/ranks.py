"""One mode for all ranks that schedule the same queue.

Each tensor-parallel rank of SGLang has a scheduler of its own, and all must come to the same order.  A
control file may be written between the looks of two ranks, or lie on one host of several; so the first rank's
word is passed to the others, in the call in which all of them look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peek.adapters.switch import MODES


def ranks_of_one_queue(arguments: Any) -> int:
    """How many schedulers these `ServerArgs` start for each queue; 0 without them, when it cannot be told."""
    if arguments is None:
        return 0
    ranks = int(getattr(arguments, "tp_size", 1) or 1) * int(getattr(arguments, "pp_size", 1) or 1)
    if getattr(arguments, "enable_dp_attention", False):
        ranks //= int(getattr(arguments, "dp_size", 1) or 1)
    return ranks


def agreement(scheduler: Any) -> Callable[[str], str] | None:
    """A function that each rank calls with its own word, and that gives all of them the first rank's.

    It is a broadcast over SGLang's own group of the tensor-parallel ranks, on the CPU: all of them must come
    to the call, and wait for the slowest.  They do, since they order the same queue equally often.

    None with one rank, and where that group is not all who share a queue: pipeline stages and
    context-parallel ranks schedule at different times.
    """
    group = getattr(scheduler, "attn_tp_cpu_group", None)
    arguments = getattr(scheduler, "server_args", None)
    ranks = ranks_of_one_queue(arguments)
    if group is None or ranks == 1:
        return None
    import torch
    from torch import distributed

    if distributed.get_world_size(group) != ranks:
        return None
    first = distributed.get_global_rank(group, 0)

    def agree(mode: str) -> str:
        word = torch.tensor([MODES.index(mode)], device="cpu")
        distributed.broadcast(word, first, group)
        return MODES[int(word)]

    return agree
