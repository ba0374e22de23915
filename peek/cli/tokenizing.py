"""Tokenizers for `peek reorder`: a local file becomes a function from text to token ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from peek import PeekError
from peek.cli.extras import needs

MISTRAL_NAMES: Final = ("tekken", "tokenizer.model")
"""How the names of Mistral's tokenizer files begin."""


def tokenizer_file(path: Path) -> Path:
    """The file itself, or the one in a folder."""
    if path.is_dir():
        names = ("tokenizer.json", "tekken.json", "tokenizer.model")
        found = [path / name for name in names if (path / name).exists()]
        if not found:
            raise PeekError(f"{path}: has none of {', '.join(names)}")
        path = found[0]
    if not path.exists():
        raise PeekError(f"{path}: no such file")
    return path


def load_tokenizer(path: Path) -> Callable[[str], list[int]]:
    """`tokenizer.json` of Hugging Face, or Mistral's `tekken.json` or `tokenizer.model*`.

    No special tokens are added: they are the same at the start of every prompt.  Nothing is downloaded.
    """
    return _mistral(path) if path.name.startswith(MISTRAL_NAMES) else _hugging_face(path)


def _hugging_face(path: Path) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise needs("tokenizers", "--tokenizer") from None
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the Rust library raises plain Exception
        raise PeekError(f"{path}: not a tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


def _mistral(path: Path) -> Callable[[str], list[int]]:
    try:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ImportError:
        raise needs("mistral-common", f"--tokenizer {path.name}") from None
    try:
        tokenizer: Any = MistralTokenizer.from_file(str(path)).instruct_tokenizer.tokenizer
    except Exception as error:  # noqa: BLE001 - what a damaged file raises is not documented
        raise PeekError(f"{path}: not a tokenizer: {error}") from None

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, bos=False, eos=False)
        return ids

    return encode
