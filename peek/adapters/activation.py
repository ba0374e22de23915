"""Whether and how an adapter is asked for: engine options first, then the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from peek.config import PeekConfig
from peek.errors import InvalidConfig


def requested_config(options: Any) -> PeekConfig:
    """The configuration in force.

    Args:
        options: what the engine's own configuration holds under "peek"; None or empty looks at the
            environment (`PEEK_POLICY`, `PEEK_ONLINE_*`).

    Returns:
        A configuration whose `is_stock` is true when nothing was asked for.

    Raises:
        InvalidConfig: an unknown name or value; a mistake in a setting must not pass for stock.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidConfig(
            f"the options of peek are {options!r}; need an object such as {{'policy': 'peek'}}"
        )
    if options:
        return PeekConfig.from_dict(options)
    return PeekConfig.from_env(os.environ)
