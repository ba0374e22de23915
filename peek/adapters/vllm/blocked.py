"""Which waiting requests vLLM's scan would pass over, whatever their place, and when that ends.

Two things keep a request from running that its place in the queue does not change: its grammar is not
compiled yet, or the slots of LoRA adapters are taken by others.  While a slot is free, the adapters that have
waited longest contend for it in the plan, one more than there are free slots: the plan decides among them,
and an adapter that loses costs what its own requests cost, not all that wait.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any


class Blocked:
    """The waiting requests of one scheduler that cannot run.

    Args:
        scheduler: vLLM's.
        compiles: the status of a request whose grammar vLLM has not seen compiled.
    """

    def __init__(self, scheduler: Any, compiles: object) -> None:
        self._scheduler = scheduler
        self._compiles = compiles
        self._grammars: dict[str, Any] = {}
        self._loras: dict[int, dict[str, Any]] = {}
        self._kept: dict[str, int] = {}
        """Who is held, and for which LoRA adapter; 0 for a grammar."""
        self._contending: dict[int, int] = {}
        """Requests in plans, by LoRA adapter."""
        self._running: set[int] = set()

    def __contains__(self, request_id: object) -> bool:
        """Whether a request is held."""
        return request_id in self._kept

    def look(self) -> None:
        """See which adapters have slots; before each step.  O(running) with LoRA, else O(1)."""
        self._running = set()
        if self._scheduler.lora_config:
            self._running = {lora_of(request) for request in self._scheduler.running} - {0}

    def blocks(self, request: Any) -> bool:
        """Whether a request that waits cannot run as far as is known.  O(adapters in plans)."""
        if request.status == self._compiles and not _is_compiled(request):
            return True
        lora = lora_of(request) if self._scheduler.lora_config else 0
        if not lora or lora in self._running:
            return False
        free = self._free()
        return free <= 0 or (lora not in self._contending and self._contenders() > free)

    def _free(self) -> int:
        return int(self._scheduler.lora_config.max_loras) - len(self._running)

    def _contenders(self) -> int:
        return sum(lora not in self._running for lora in self._contending)

    def hold(self, request: Any) -> None:
        """A request is in no plan because it cannot run.  O(1)."""
        compiles = request.status == self._compiles and not _is_compiled(request)
        lora = 0 if compiles else lora_of(request)
        group = self._loras.setdefault(lora, {}) if lora else self._grammars
        group[request.request_id] = request
        self._kept[request.request_id] = lora

    def let_go(self, request_id: str) -> None:
        """A request left, or is in plans again.  O(1)."""
        lora = self._kept.pop(request_id, -1)
        if lora == 0:
            del self._grammars[request_id]
        elif lora > 0:
            del self._loras[lora][request_id]
            if not self._loras[lora]:
                del self._loras[lora]

    def planned(self, request: Any, change: int) -> None:
        """One more, or one fewer, of its LoRA adapter is in plans.  O(1)."""
        lora = lora_of(request)
        if lora:
            count = self._contending.get(lora, 0) + change
            if count:
                self._contending[lora] = count
            else:
                self._contending.pop(lora, None)

    def freed(self) -> list[Any]:
        """Who is held and could run now.  O(grammars + adapters), and those who are named."""
        if not self._kept:
            return []
        ready = [request for request in self._grammars.values() if _is_compiled(request)]
        may = [lora for lora in self._loras if lora in self._running]
        if self._loras and self._free() > 0:
            may += [lora for lora in self._loras if lora in self._contending and lora not in self._running]
            room = self._free() + 1 - self._contenders()
            if room > 0:
                others = [lora for lora in self._loras if lora not in may]
                may += sorted(others, key=self._oldest)[:room]
        return ready + [request for lora in may for request in self._loras[lora].values()]

    def _oldest(self, lora: int) -> float:
        return min(float(request.arrival_time) for request in self._loras[lora].values())

    def everybody(self) -> list[Any]:
        """Who is held.  O(those)."""
        groups = [self._grammars, *self._loras.values()]
        return [request for group in groups for request in group.values()]


def lora_of(request: Any) -> int:
    """The number of a request's LoRA adapter, 0 without one."""
    return 0 if request.lora_request is None else int(request.lora_request.lora_int_id)


def _is_compiled(request: Any) -> bool:
    """Whether vLLM would find the grammar compiled, or failed.  Asked of vLLM itself, this may wait."""
    wanted = request.structured_output_request
    if wanted is None:
        return False
    grammar = wanted._grammar if hasattr(wanted, "_grammar") else wanted.grammar
    return grammar is not None and (not isinstance(grammar, Future) or grammar.done())
