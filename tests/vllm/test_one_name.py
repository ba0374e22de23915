"""`peek.adapters.vllm.Scheduler`: one name for both forms, as vLLM itself would choose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm_lab import (
    AsyncScheduler,
    make_request,
    make_scheduler,
    make_vllm_config,
)
from vllm_lab import Scheduler as StockScheduler
from vllm_small import A, run_out

import peek.adapters.vllm as adapter_package
from peek import InvalidConfig
from peek.adapters.vllm import PeekAsyncScheduler, PeekScheduler, Scheduler

NAME = "peek.adapters.vllm.Scheduler"


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("given", [NAME, Scheduler], ids=["path", "class"])
def test_the_engines_own_setting_chooses(asynchronous: bool, given: Any) -> None:
    config = make_vllm_config(asynchronous=asynchronous, options={"policy": "peek"})
    stock = config.scheduler_config.get_scheduler_cls()
    assert stock is (AsyncScheduler if asynchronous else StockScheduler)
    config.scheduler_config.scheduler_cls = given
    engine = make_scheduler(config.scheduler_config.get_scheduler_cls(), config=config)
    assert type(engine) is (PeekAsyncScheduler if asynchronous else PeekScheduler)
    assert isinstance(engine, stock)
    assert isinstance(engine, AsyncScheduler) == asynchronous
    assert engine.peek.adapter is not None


def test_it_serves() -> None:
    engine = make_scheduler(Scheduler, options={"policy": "peek", "strict": True})
    for i in range(4):
        engine.add_request(make_request(f"r{i}", [*A, i], 2))
    assert len(run_out(engine)) == 4


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="PeekSyncScheduler"):
        adapter_package.PeekSyncScheduler  # noqa: B018


@pytest.mark.parametrize("cls", [Scheduler, PeekScheduler, PeekAsyncScheduler])
@pytest.mark.parametrize("options", [None, {"policy": "peek"}], ids=["not asked", "asked"])
def test_diffusion_models_are_refused(cls: Any, options: Any) -> None:
    config = make_vllm_config(options=options)
    config.diffusion_config = SimpleNamespace(canvas_length=8)
    with pytest.raises(InvalidConfig, match=r"diffusion models.*leave out --scheduler-cls"):
        make_scheduler(cls, config=config)
