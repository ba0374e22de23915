"""The part of SGLang's scheduler, played over its real cache, policy, `PrefillAdder` and `ScheduleBatch`.

Follows `Scheduler.get_next_batch_to_run` and the two result processors step by step, so that an order of
the waiting queue meets what it meets in the engine: a queue rebound to a new list after every prefill
batch, chunked prefill, retraction, aborts, and results that come one batch late in overlap mode.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import sglang_versions as versions
from sglang_lab import VOCABULARY, World, leaked, make_request
from sglang_tree import locked
from support.stepping import Admission, Record, Steps, token_at

from peek.adapters.sglang.plugin import after_prefill

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sglang.srt.managers.schedule_batch import FINISH_ABORT, ScheduleBatch
    from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

MODEL = SimpleNamespace(vocab_size=VOCABULARY, is_encoder_decoder=False, is_matryoshka=False)


class Stepper(Steps):
    """Plays the scheduler; `waiting_queue` and `running` are what SGLang calls so.

    To the plug-in's hooks it is a scheduler: what they ask of one has SGLang's name, and the hook behind the
    search for prefills is called.
    `overlap`: the results of a batch are processed after the next one has been formed.  `ratio` is the
    share of the tokens still to be generated that an admission reserves: below 1 requests get retracted.
    """

    def __init__(
        self,
        world: World,
        *,
        overlap: bool = False,
        chunk: int | None = None,
        max_running: int = 64,
        max_prefill_tokens: int = 16384,
        ratio: float = 0.7,
    ) -> None:
        super().__init__()
        self.world = world
        self.policy = world.policy
        self.overlap = overlap
        self.chunk = self.chunked_prefill_size = chunk
        self.max_running = self.max_running_requests = max_running
        self.max_prefill_tokens = max_prefill_tokens
        self.ratio = ratio
        self.waiting_queue: list[Any] = []
        self.running = ScheduleBatch(reqs=[])
        self.last: Any = None
        self.chunked: Any = None
        self.processed_tokens = 0
        self._aborted_chunk: Any = None
        self._results: deque[tuple[Any, list[int]]] = deque()

    @property
    def running_batch(self) -> Any:
        return self.running

    @property
    def beside(self) -> Any:
        return getattr(self.policy, "peek", None)

    def request_of(self, job: Any, name: str, number: int, play: Any) -> Any:
        return make_request(
            name,
            job.tokens(number),
            job.max_tokens,
            extra_key=job.space,
            cache_salt=job.salt,
            priority=job.priority if play.priority else None,
            arrival=job.arrival_s(number),
        )

    # -- what comes from outside --------------------------------------------------------------------------

    def add(self, request: Any) -> None:
        self.records[request.rid] = Record(self.at)
        self._queue(request, request.time_stats.wait_queue_entry_time or self.now)

    def abort(self, rid: str) -> None:
        """As `Scheduler.abort_request`: out of the queue at once, or at the next result."""
        for i, request in enumerate(self.waiting_queue):
            if request.rid == rid:
                del self.waiting_queue[i]
                self._ended(request, aborted=True)
                return
        if versions.ABORTS_CHUNKS and self.chunked is not None and self.chunked.rid == rid:
            self._aborted_chunk = self.chunked
        launched = self.last.reqs if self.last is not None else []
        for request in [*self.running.reqs, *launched]:
            if request.rid == rid and not request.finished():
                request.to_finish = FINISH_ABORT()

    # -- the loop -----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not (self.waiting_queue or self.running.reqs or self.last or self.chunked or self._results)

    def step(self) -> Any:
        """One turn of the event loop; the batch that it launched, or None."""
        self.watch(self, None)
        batch = self._next_batch()
        if batch is not None:
            self._launch(batch)
        while len(self._results) > (1 if self.overlap and batch is not None else 0):
            self._process(*self._results.popleft())
        self.last = batch
        self.watch(self, batch)
        self.at += 1
        return batch

    def essence(self, decided: Any) -> list[str]:
        return [] if decided is None else [request.rid for request in decided.reqs]

    def check(self) -> None:
        waiting = [request.rid for request in self.waiting_queue]
        inside = [*self.running.reqs, *(self.last.reqs if self.last else []), self.chunked]
        running = {request.rid for request in inside if request is not None and not request.finished()}
        known = {rid for rid, record in self.records.items() if not (record.finished or record.aborted)}
        assert sorted(waiting) == sorted(known - running), "somebody is in two lists, or in none"
        assert running <= known

    def check_nothing_is_left(self) -> None:
        world = self.world
        assert leaked(world) == 0, "slots leaked"
        assert locked(world) == 0, "somebody still holds a part of the tree"
        assert len(world.pool.free_slots) == world.pool.size, "a row is still taken"
        adapter = None if self.beside is None else self.beside.adapter
        if adapter is not None:
            adapter.order([])
            assert self.beside.shield.fallbacks == 0
            assert len(adapter.planner) == len(adapter.quarantine) == 0
            assert (adapter._waiting, adapter._in_flight, adapter._turns, adapter._door.lent) == (
                {},
                {},
                {},
                {},
            )
            assert adapter._door.pages is None or len(adapter._door.pages) == 0, (
                "pages outlive their requests"
            )

    def _next_batch(self) -> Any:
        self._end_aborted_chunk()
        left_out = []
        if self.chunked is not None:
            left_out.append(self.chunked)
            versions.stash_chunk(self.chunked, self.world.tree)
        if self.last is not None and self.last.forward_mode.is_extend():
            self._merge_last(left_out)
        if versions.FILTERS_RUNNING:
            self._shrink(self.running)
        batch = self._prefill_batch()
        after_prefill(batch, self)
        if batch is None and self.running.reqs and self._decode():
            batch = self.running
        return batch

    def _merge_last(self, left_out: list[Any]) -> None:
        last = self.last
        if last.chunked_req is not None:
            left_out.append(last.chunked_req)
        before = last.batch_size()
        last.filter_batch(**{versions.EXCLUDE: left_out})
        if last.batch_size() < before:
            self.running.batch_is_full = False
        if not last.is_empty():
            if self.running.is_empty():
                self.running = last
            else:
                self.running.merge_batch(last)

    def _shrink(self, batch: Any) -> None:
        before = batch.batch_size()
        batch.filter_batch()
        if batch.batch_size() < before:
            batch.batch_is_full = False

    # -- prefill ------------------------------------------------------------------------------------------

    def _prefill_batch(self) -> Any:
        running = self.running
        if versions.FILTERS_RUNNING and running.is_empty():
            running.batch_is_full = False
        if (running.batch_is_full or not self.waiting_queue) and self.chunked is None:
            return None
        if versions.ASKS_FOR_SEATS and self._seats() <= 0 and self.chunked is None:
            running.batch_is_full = True
            return None
        more = {"processed_tokens": self.processed_tokens} if versions.COUNTS_TOKENS else {}
        self.policy.calc_priority(self.waiting_queue, running, **more)
        adder = self._fill()
        if not adder.can_run_list:
            return None
        entered = set(adder.can_run_list)
        for admission in self._entering(adder.can_run_list):
            self.note(admission)
        self.waiting_queue = [request for request in self.waiting_queue if request not in entered]
        if adder.new_chunked_req is not None:
            assert self.chunked is None
            self.chunked = adder.new_chunked_req
        if self.chunked is not None:
            versions.count_chunk(self.chunked, 1)
        batch = self._batch_of(adder.can_run_list)
        batch.prepare_for_extend()
        batch.decoding_reqs = None
        self.processed_tokens += batch.extend_num_tokens
        return batch

    def _entering(self, entered: list[Any]) -> Iterator[Admission]:
        """Those of the queue that a batch took, in its order; without the next chunk of an older one."""
        fresh = [request for request in self.waiting_queue if not request.retracted_stain]
        by_age = sorted(fresh, key=lambda request: request.time_stats.wait_queue_entry_time)
        for request in filter(set(self.waiting_queue).__contains__, entered):
            again = bool(request.retracted_stain)
            cached = versions.prefix_len(request)
            whole = len(request.origin_input_ids) + len(request.output_ids)
            oldest = not again and by_age[0] is request
            yield Admission(request.rid, self.at, cached, whole - cached, oldest, again)
            if not again:
                by_age.remove(request)

    def _fill(self) -> Any:
        """Admit from the head of the queue until somebody does not fit."""
        world, running = self.world, self.running
        limits = (self.ratio, self.max_prefill_tokens, self.chunk)
        adder = PrefillAdder(world.page_size, world.tree, world.allocator, running, *limits)
        if self.chunked is not None:
            self.chunked.init_next_round_input()
            versions.limit_chunk(adder, self.policy, self.chunked, self.waiting_queue, world.page_size)
            self.chunked = adder.add_chunked_req(self.chunked)
        for request in self.waiting_queue:
            if versions.STOPS_WHEN_SPENT and adder.budget_state() == AddReqResult.OTHER:
                break
            if len(adder.can_run_list) >= self._seats(adder.can_run_list):
                running.batch_is_full = True
            if running.batch_is_full:
                break
            request.init_next_round_input(world.tree)
            result = adder.add_one_req(
                request, has_chunked_req=self.chunked is not None, truncation_align_size=None
            )
            if result == AddReqResult.CONTINUE:
                continue
            if result == AddReqResult.NO_TOKEN:
                served = bool(adder.can_run_list or running.reqs)
                running.batch_is_full = served or not versions.FILTERS_RUNNING
            break
        return adder

    def _seats(self, entered: Sequence[Any] = ()) -> int:
        free = self.max_running - len(self.running.reqs)
        return min(free, versions.free_rows(self.world.pool, entered, free))

    def _batch_of(self, requests: list[Any]) -> Any:
        own = self.world
        given = (requests, own.pool, own.allocator, own.tree, MODEL, self.overlap, SpeculativeAlgorithm.NONE)
        return ScheduleBatch.init_new(*given, chunked_req=self.chunked)

    # -- decode -------------------------------------------------------------------------------------------

    def _decode(self) -> bool:
        """Prepare the running batch for one more token each; False where nobody is left to run."""
        batch = self.running
        before = batch.batch_size()
        ending = versions.ending(batch, self._results[0][0]) if self._results else []
        batch.filter_batch(**{versions.EXCLUDE: ending})
        if batch.is_empty():
            batch.batch_is_full = False
            return False
        if not batch.check_decode_mem():
            if ending:  # their slots come back with this step
                batch.batch_is_full = False
                return False
            retracted, self.ratio, given_up = versions.retract(batch, self.world.settings)
            assert not given_up, "the pool is too small for a single request"
            for request in retracted:
                self.records[request.rid].preemptions += 1
                self._queue(request, self.now)
        if batch.batch_size() < before:
            batch.batch_is_full = False
        batch.prepare_for_decode()
        return True

    # -- results ------------------------------------------------------------------------------------------

    def _launch(self, batch: Any) -> None:
        """The fake model: it knows each sequence's length and nothing else."""
        lengths = batch.seq_lens_cpu.tolist()
        tokens = [token_at(request.rid, n) for request, n in zip(batch.reqs, lengths, strict=True)]
        versions.set_next_input(batch, torch.tensor(tokens, dtype=torch.int64))
        self._results.append((batch.copy(), tokens))

    def _process(self, batch: Any, tokens: list[int]) -> None:
        extended = batch.forward_mode.is_extend()
        for request, token in zip(batch.reqs, tokens, strict=True):
            chunks = versions.chunks_in_flight(request)
            if (request.finished() and chunks <= 0) or request.is_retracted:
                continue
            if extended and chunks > 0:
                versions.count_chunk(request, -1)
                continue
            request.output_ids.append(token)
            versions.check_finished(request)
            if request.finished():
                versions.release(request, self.world.tree, insert=True)
                self._ended(request, aborted=isinstance(request.finished_reason, FINISH_ABORT))
            elif extended:
                versions.cache_unfinished(request, self.world.tree)

    def _end_aborted_chunk(self) -> None:
        request, self._aborted_chunk = self._aborted_chunk, None
        if request is None or request is not self.chunked:
            return
        request.finished_reason = FINISH_ABORT()
        request.to_finish = None
        versions.release(request, self.world.tree, insert=False)
        self.chunked = None
        self._ended(request, aborted=True)

    def _queue(self, request: Any, entry: float) -> None:
        self.waiting_queue.append(request)
        request.time_stats.wait_queue_entry_time = entry
        if versions.COUNTS_TOKENS:
            request.arrival_processed_tokens = self.processed_tokens

    def _ended(self, request: Any, *, aborted: bool) -> None:
        record = self.records[request.rid]
        record.tokens = list(request.output_ids)
        record.finished = not aborted
        record.aborted = aborted
