"""SGLang 0.5.9, which has no plug-ins: scheduler processes with `peek`, and an `Engine` that starts them."""

from __future__ import annotations

from typing import Any

from peek.adapters.sglang.plugin import (
    after_policy,
    after_prefill,
    around,
    asks_to_replace,
    configured_or_exit,
)


def run_scheduler_process(*args: Any, **kwargs: Any) -> Any:
    """SGLang's own `run_scheduler_process`, in a process whose policies have a planner beside them."""
    from sglang.srt.managers import schedule_policy, scheduler

    settings = configured_or_exit()
    if settings is not None:
        replaces_any = asks_to_replace()
        hook, made = around(settings, replaces_any), after_policy(settings, replaces_any)

        class PlannedPolicy(schedule_policy.SchedulePolicy):  # type: ignore[misc]
            """SGLang's policy with `peek` around `calc_priority`."""

            def calc_priority(self, waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
                stock = schedule_policy.SchedulePolicy.calc_priority
                return hook(stock, self, waiting_queue, *args, **kwargs)

        class PlannedScheduler(scheduler.Scheduler):  # type: ignore[misc]
            """SGLang's scheduler, telling `peek` of its policy and whom it has admitted."""

            def init_schedule_policy(self, *args: Any, **kwargs: Any) -> None:
                super().init_schedule_policy(*args, **kwargs)
                made(None, self)

            def get_new_batch_prefill(self, *args: Any, **kwargs: Any) -> Any:
                batch = super().get_new_batch_prefill(*args, **kwargs)
                after_prefill(batch, self)
                return batch

        scheduler.SchedulePolicy = PlannedPolicy  # the names that are looked up when a scheduler is made
        scheduler.Scheduler = PlannedScheduler
    return scheduler.run_scheduler_process(*args, **kwargs)


def engine_class() -> Any:
    """A subclass of `sglang.srt.entrypoints.engine.Engine` that starts such processes."""
    from sglang.srt.entrypoints.engine import Engine

    class PeekEngine(Engine):  # type: ignore[misc]
        """SGLang's engine; `peek` is active in its schedulers if the environment asks for it."""

        run_scheduler_process_func = staticmethod(run_scheduler_process)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            configured_or_exit()  # here, before a process is started and a model loaded
            super().__init__(*args, **kwargs)

    return PeekEngine
