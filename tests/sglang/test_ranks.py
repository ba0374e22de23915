"""Several ranks take one word from the control file, over a real group of processes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peek.adapters.activation import MODES
from peek.adapters.lifecycle import Switch
from peek.adapters.sglang.plugin import mode_agreement

CALLS = 300
RANKS = 3


def scheduler_like(group: Any, **arguments: int) -> SimpleNamespace:
    return SimpleNamespace(attn_tp_cpu_group=group, server_args=SimpleNamespace(**arguments))


def main(rank: int, folder: Path) -> None:
    """One rank: the modes it is in, while it writes into its own file whatever it likes."""
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    group = distributed.group.WORLD
    for more in ({"pp_size": 2}, {"attn_cp_size": 2, "tp_size": 2 * RANKS}):
        assert mode_agreement(scheduler_like(group, **{"tp_size": RANKS, **more})) is None
    agree = mode_agreement(scheduler_like(group, tp_size=RANKS))
    path, rnd, modes = folder / f"mode-{rank}", random.Random(rank), []
    switch = Switch("on", str(path), 4, agree)
    for _ in range(CALLS):
        if rnd.random() < 0.3:
            path.write_text(rnd.choice([*MODES, "nonsense"]))
        elif rnd.random() < 0.05:
            path.unlink(missing_ok=True)
        modes.append(switch.look())
    (folder / f"modes-{rank}").write_text(json.dumps(modes))
    distributed.destroy_process_group()


def test_all_are_in_the_same_mode_in_every_call(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=300)
        assert rank.returncode == 0, errors
    first, *others = [json.loads((tmp_path / f"modes-{rank}").read_text()) for rank in range(RANKS)]
    assert others == [first] * (RANKS - 1)
    assert set(first) == set(MODES)
    assert all(mode == first[at - at % 4] for at, mode in enumerate(first))


@pytest.mark.parametrize("arguments", [{}, {"tp_size": 1}])
def test_one_rank_agrees_with_nobody(arguments: dict[str, int]) -> None:
    assert mode_agreement(scheduler_like(object(), **arguments)) is None


def test_ranks_without_a_group_cannot_agree() -> None:
    assert mode_agreement(scheduler_like(None, tp_size=2)) is None
    assert mode_agreement(None) is None


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
