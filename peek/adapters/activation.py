"""Whether and how an adapter is asked for: engine options first, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peek.config import PeekConfig
from peek.errors import InvalidConfig
from peek.settings import require_flag


@dataclass(frozen=True)
class Settings:
    """What an operator asked of an adapter.

    Attributes:
        config: the policy and what goes with it.
        strict: re-raise internal errors, for tests; otherwise they leave the engine in its own order.
    """

    config: PeekConfig
    strict: bool = False

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Settings:
        """From JSON-like options: those of `PeekConfig.from_dict`, and `strict`.  `InvalidConfig`."""
        strict = options.get("strict", False)
        require_flag("strict", strict)
        policy = {name: value for name, value in options.items() if name != "strict"}
        return cls(PeekConfig.from_dict(policy), strict)


def requested_settings(options: Any) -> Settings:
    """The settings in force.

    Args:
        options: what the engine's own configuration holds under "peek"; None or empty looks at the
            environment (`PEEK_POLICY`, `PEEK_ONLINE_*`).

    Returns:
        Settings whose `config.is_stock` is true when nothing was asked for.

    Raises:
        InvalidConfig: an unknown name or value; a mistake in a setting must not pass for stock.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidConfig(
            f"the options of peek are {options!r}; need an object such as {{'policy': 'peek'}}"
        )
    if options:
        return Settings.from_dict(options)
    return Settings(PeekConfig.from_env(os.environ))
