"""A tokenizer made by hand: the bytes of a text, and words that no text has."""

from __future__ import annotations

from pathlib import Path


def write_tokenizer(folder: Path, size: int) -> None:
    """Files of a tokenizer of `size` tokens, `transformers` finds them.  Needs `transformers`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<unk>", "<s>", "</s>", *letters]
    names += [f"word{i}" for i in range(size - len(names))]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(str(folder))
