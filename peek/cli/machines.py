"""`--card`, `--cards`, `--model`: on what `peek simulate` runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import typer

from peek import PeekError, WorkloadError
from peek.simulation.cost import CostModel, Hardware, Model, arena_tokens, card_named, model_named, model_of

DEFAULT_CARD: Final = "h100"
DEFAULT_MODEL: Final = "qwen2.5-32b"
LARGEST_CARDS: Final = 1024


def machine(card: str | None, cards: int, model: str | None) -> CostModel:
    """Step times and memory of what was asked for; wrong usage for names that are unknown."""
    if cards > LARGEST_CARDS:
        raise typer.BadParameter(f"{cards} is not in 1..{LARGEST_CARDS}", param_hint="--cards")
    return CostModel(_hardware(card or DEFAULT_CARD, cards), _model(model or DEFAULT_MODEL))


def arena_of(cost: CostModel, utilisation: float) -> int:
    """Tokens of KV cache that the weights leave; wrong usage if they leave none."""
    try:
        return arena_tokens(cost.hardware, cost.model, utilisation)
    except WorkloadError as error:
        raise typer.BadParameter(f"{error}: more of them with --cards", param_hint="--card") from None


def _hardware(card: str, cards: int) -> Hardware:
    try:
        return card_named(card.lower(), cards)
    except WorkloadError as error:
        raise typer.BadParameter(str(error), param_hint="--card") from None


def _model(model: str) -> Model:
    """By its name, or a path to its `config.json`."""
    path = Path(model)
    if path.suffix != ".json":
        try:
            return model_named(model.lower())
        except WorkloadError as error:
            raise typer.BadParameter(f"{error}, or a config.json", param_hint="--model") from None
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise PeekError(f"{path}: not valid JSON") from None
    if not isinstance(config, dict):
        raise PeekError(f"{path}: not a JSON object")
    return model_of(str(path), config)
