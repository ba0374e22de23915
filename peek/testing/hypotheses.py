"""hypothesis, imported where it is first needed; `peek.testing` itself is imported without it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from peek.errors import PeekError

if TYPE_CHECKING:
    from hypothesis import strategies
    from hypothesis.strategies import SearchStrategy


class MissingHypothesis(PeekError, ImportError):
    """A part of `peek.testing` that draws examples was used, and hypothesis is not installed."""


def need_hypothesis() -> None:
    """Raise `MissingHypothesis` if hypothesis cannot be imported."""
    try:
        import hypothesis  # noqa: F401
    except ImportError:
        raise MissingHypothesis("peek.testing needs hypothesis here: pip install hypothesis") from None


class _Strategies:
    """`hypothesis.strategies`, imported on first use; `MissingHypothesis` if it cannot be."""

    def __getattr__(self, name: str) -> Any:
        need_hypothesis()
        return getattr(import_module("hypothesis.strategies"), name)


if TYPE_CHECKING:
    st = strategies
else:
    st = _Strategies()


def for_all(strategy: SearchStrategy[Any], check: Callable[[Any], None], examples: int | None) -> None:
    """Call `check` with `examples` examples (None: hypothesis' own number); raise the smallest failure."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Flaky

    failures: list[str] = []

    def holds(example: Any) -> None:
        try:
            check(example)
        except AssertionError as error:
            failures.append(str(error))
            raise

    chosen = settings(
        deadline=None, database=None, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        max_examples=settings().max_examples if examples is None else examples,
    )  # fmt: skip
    try:
        chosen(given(strategy)(holds))()
    except AssertionError:
        raise AssertionError(failures[-1]) from None
    except Flaky:
        cause = "something outside its arguments (a clock, chance, state that every copy has in common)"
        raise AssertionError(f"{failures[-1]}\nIt does not fail every time: {cause} decides.") from None
