"""Run a batch on an engine in one call: reorder the prompts, and return the outputs in the batch's order.

These functions read the caller's engine's tokenizer and the size of its cache, and change nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, Final, NamedTuple

from peek.errors import EngineMismatch, InvalidConfig
from peek.offline.reordering import reorder

NOTHING: Final = [0]
"""Tokens of an empty prompt in the trie.  The engine gets the empty prompt and reports its own error."""

_VLLM_PER_PROMPT: Final = ("sampling_params", "lora_request", "priority")
"""Arguments of `LLM.generate` that may be a sequence with one item per prompt."""


class CacheSize(NamedTuple):
    """Size of an engine's KV cache and of one block of it, both in tokens."""

    tokens: int
    block_tokens: int


def generate_vllm(
    llm: Any,
    prompts: Sequence[Any],
    sampling_params: Any = None,
    *,
    cache_tokens: int | None = None,
    **options: Any,
) -> list[Any]:
    """Run `llm.generate(prompts, sampling_params, ...)` in an order that suits the prefix cache.

    Args:
        llm: a `vllm.LLM`.
        prompts: texts, token ids or dictionaries, as `LLM.generate` takes them.
        sampling_params: one object for all prompts, or a sequence with one per prompt.
        cache_tokens: size of the KV cache in tokens; None reads it from `llm`.
        options: other arguments of `LLM.generate`; `lora_request` and `priority` may be sequences, too.

    Returns the outputs in the order of `prompts`.  `EngineMismatch` if `llm` does not tell the size of its
    cache or of a block; `InvalidConfig` if a sequence is not as long as `prompts`, or for one prompt in place
    of a batch.

    Cost: that of `reorder`, and for texts one more tokenization.
    """
    prompts = _batch(prompts)
    options["sampling_params"] = sampling_params
    cache, block = vllm_cache(llm) if cache_tokens is None else CacheSize(cache_tokens, _vllm_block(llm))
    tokens = [_vllm_tokens(prompt, llm) for prompt in prompts]
    loras = _for_each("lora_request", options.get("lora_request"), len(prompts))
    namespaces = list(map(_vllm_namespace, prompts, loras, range(len(prompts))))
    order = reorder(tokens, cache_tokens=cache, block_tokens=block, namespaces=namespaces).order
    given = _permuted(options, _VLLM_PER_PROMPT, order)
    return _back(llm.generate([prompts[place] for place in order], **given), order)


def generate_sglang(
    engine: Any,
    prompt: Sequence[str] | None = None,
    sampling_params: Any = None,
    input_ids: Sequence[Sequence[int]] | None = None,
    *,
    cache_tokens: int | None = None,
    **options: Any,
) -> list[Any]:
    """Run `engine.generate(prompt, sampling_params, input_ids, ...)` in an order that suits the radix cache.

    Args:
        engine: a `sglang.Engine`.
        prompt: the batch as texts, instead of `input_ids`.
        sampling_params: one object for all prompts, or a sequence with one per prompt.
        input_ids: the batch as token ids, instead of `prompt`.
        cache_tokens: size of the KV cache in tokens; None reads it from `engine`.
        options: other arguments of `Engine.generate`; a list as long as the batch has one item per prompt.

    Returns the outputs in the order of the batch; with the sampling parameter `n`, those of a prompt are
    neighbours.  `EngineMismatch` if `engine` does not tell the size of its cache, or has no tokenizer for
    texts; `InvalidConfig` for neither or both of `prompt` and `input_ids`, one prompt in place of a batch,
    a `stream`, or `sampling_params`, `lora_path` or `cache_salt` not as long as the batch.
    """
    if (prompt is None) == (input_ids is None):
        raise InvalidConfig("give one of prompt and input_ids")
    if options.get("stream"):
        raise InvalidConfig("stream=True: a stream is in the order in which prompts run")
    batch = _batch(input_ids if prompt is None else prompt)
    cache, block = sglang_cache(engine) if cache_tokens is None else CacheSize(cache_tokens, 1)
    tokenizer: Any = getattr(getattr(engine, "tokenizer_manager", None), "tokenizer", None)
    if prompt is not None and tokenizer is None:
        raise EngineMismatch("the engine has no tokenizer: give token ids")
    ids = batch if prompt is None else [tokenizer.encode(text) if text else NOTHING for text in batch]
    tokens, n = list(map(_not_empty, ids)), len(batch)
    loras, salts = (_for_each(name, options.get(name), n) for name in ("lora_path", "cache_salt"))
    namespaces = list(map(_namespace, loras, salts))
    order = reorder(
        tokens, cache_tokens=cache, block_tokens=block, engine="sglang", namespaces=namespaces
    ).order
    options["sampling_params"] = sampling_params
    per_prompt = [name for name, value in options.items() if _is_per_prompt(name, value, n)]
    given = _permuted(options, ["sampling_params", *per_prompt], order)
    given["input_ids" if prompt is None else "prompt"] = [batch[place] for place in order]
    return _back(engine.generate(**given), order)


# -- cache sizes and tokenizers, as the engines report them ----------------------------------------------


def vllm_cache(llm: Any) -> CacheSize:
    """Return the cache size of a `vllm.LLM`; `EngineMismatch` if it does not tell."""
    blocks = _followed(llm, "llm_engine.vllm_config.cache_config.num_gpu_blocks")
    block_tokens = _vllm_block(llm)
    return CacheSize((blocks - 1) * block_tokens, block_tokens)  # vLLM reserves one empty block


def _vllm_block(llm: Any) -> int:
    return _followed(llm, "llm_engine.vllm_config.cache_config.block_size")


def sglang_cache(engine: Any) -> CacheSize:
    """Return the cache size of a `sglang.Engine`; `EngineMismatch` if it does not tell."""
    if hasattr(engine, "scheduler_info"):  # 0.5.9: before the first prompt, the call below never returns
        info = {**engine.scheduler_info, "page_size": engine.server_args.page_size}
    else:
        info = engine.get_server_info()
    tokens, page = info.get("max_total_num_tokens"), info.get("page_size")
    if not isinstance(tokens, int):
        raise EngineMismatch("SGLang's get_server_info has no max_total_num_tokens: give cache_tokens")
    return CacheSize(tokens, page if isinstance(page, int) else 1)


def _followed(start: Any, path: str) -> int:
    """Return the number at the end of a path of attributes; `EngineMismatch` if there is none above 0."""
    found = start
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, int) or found < 1:
        raise EngineMismatch(f"{type(start).__name__}.{path} is {found!r}: give cache_tokens")
    return found


# -- prompts and answers ------------------------------------------------------------------------------------


def _batch(prompts: Any) -> list[Any]:
    batch = list(prompts)  # by place, because a pandas column is indexed by its labels
    if isinstance(prompts, (str, dict)) or (batch and isinstance(batch[0], int)):
        raise InvalidConfig("a batch is a list of prompts, not one prompt")
    return batch


def _vllm_tokens(prompt: Any, llm: Any) -> Any:
    if isinstance(prompt, dict):
        ids = prompt.get("prompt_token_ids")
        prompt = ids if ids is not None else prompt.get("prompt", "")
    return _not_empty(llm.get_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt)


def _not_empty(tokens: Any) -> Any:
    """Return the tokens, `NOTHING` for none; `reorder` reports an object without a length, no prompt."""
    return NOTHING if isinstance(tokens, Sized) and len(tokens) == 0 else tokens


def _vllm_namespace(prompt: Any, lora: Any, place: int) -> str:
    """Return a prompt's namespace, from LoRA adapter and salt; a prompt with media has one of its own."""
    salt = ""
    if isinstance(prompt, dict):
        salt = str(prompt.get("cache_salt") or "")
        if prompt.get("multi_modal_data"):
            salt += f"/media {place}"
    return _namespace(getattr(lora, "lora_name", lora), salt)


def _namespace(lora: Any, salt: Any) -> str:
    return f"{lora or ''}/{salt or ''}" if lora or salt else ""


def _is_per_prompt(name: str, value: Any, n: int) -> bool:
    """Return whether an option of `Engine.generate` has one item for each of `n` prompts."""
    is_for_all = name == "token_ids_logprob" and not (value and isinstance(value[0], list))
    return isinstance(value, list) and len(value) == n and not is_for_all


def _permuted(options: dict[str, Any], names: Sequence[str], order: list[int]) -> dict[str, Any]:
    """Return the options, with those that have one item per prompt put into this order."""
    given = dict(options)
    for name in names:
        if isinstance(options.get(name), Sequence):
            items = _for_each(name, options[name], len(order))
            given[name] = [items[place] for place in order]
    return given


def _for_each(name: str, value: Any, n: int) -> Sequence[Any]:
    """Return the item of an option for each of `n` prompts, whether it is given for each or once for all."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * n
    if len(value) != n:
        raise InvalidConfig(f"{name} has {len(value)} items for {n} prompts")
    return value


def _back(outputs: Sequence[Any], order: list[int]) -> list[Any]:
    """Return the outputs in the batch's order; SGLang gives `n` of them for each prompt, side by side."""
    each = max(len(outputs) // max(len(order), 1), 1)
    places = [place * each + sample for place in order for sample in range(each)]
    answers = dict(zip(places, outputs, strict=True))
    return [answers[place] for place in range(len(answers))]
