"""SGLang's shortest prefill first: a long prompt's next chunk leaves room for shorter prompts that wait.

Source: `SchedulePolicy.shortest_prefill_chunk_limit` of `schedule_policy.py`, 0.5.23.
"""

from __future__ import annotations

from peek.simulation.radix_engine import RadixEngine, RadixJob


class ShortestFirstEngine(RadixEngine):
    """`RadixEngine` under the policy `spf`."""

    def next_chunk(self, job: RadixJob, budget: int) -> int:
        """As the base class, less the work of those at the queue's head who have less to compute than `job`.

        They are counted as long as one token of the budget stays.  O(those counted), and a cycle of the
        planner, since SGLang sorts its queue first.
        """
        remaining = job.total_tokens - job.computed
        self.plan()
        reserved = 0
        for waiting in self.waiting:
            assert isinstance(waiting, RadixJob)
            work = self.uncached_tokens(waiting)
            if work >= remaining or reserved + work >= budget:
                break
            reserved += work
        return min(remaining, budget - reserved)
