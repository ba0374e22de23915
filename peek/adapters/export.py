"""How numbers get from the process of an engine's scheduler to its `/metrics`.

Through files of `prometheus_client`'s multi-process format, read when `/metrics` is asked for.  A number is
current the moment it is written, at the price of a memory write, and outlives a scheduler that is started
anew.

SGLang serves such files itself.  vLLM does where it runs several API servers; where it runs one, our own
collector in that process reads them: `offer`, an entry point in the group `vllm.general_plugins`, puts it
there and names the folder to the processes that vLLM starts.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from weakref import finalize

ENGINES_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
OUR_FOLDER: Final = "PEEK_METRICS_DIR"
"""Set by `offer` for the processes started from here."""

_file_numbers = count()


def folder() -> str | None:
    """Where to write; None where nothing reads it."""
    return os.environ.get(ENGINES_FOLDER) or os.environ.get(OUR_FOLDER)


def offer() -> None:
    """Show on this process's `/metrics` what the processes started from here write.  Once; files come later.

    Called by vLLM in each of its processes, whether `peek` is configured or not: it names a folder that does
    not exist before something is written.
    """
    if folder() is not None:
        return
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    path = Path(tempfile.gettempdir(), f"peek-metrics-{uuid4().hex}")
    os.environ[OUR_FOLDER] = str(path)
    REGISTRY.register(FolderCollector(path))
    atexit.register(_clean_up, path, os.getpid())


def _clean_up(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        shutil.rmtree(path, ignore_errors=True)


class FolderCollector:
    """A `prometheus_client` collector of what is in a folder now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterable[Any]:
        """The metrics of all files together: counters are added up, of gauges the latest counts."""
        if not self._path.is_dir():
            return ()
        from prometheus_client.multiprocess import MultiProcessCollector

        merged: Iterable[Any] = MultiProcessCollector(None, str(self._path)).collect()
        return merged


class SeriesFiles:
    """Series of one scheduler, a file for each kind of metric.  Needs `prometheus_client`.

    Args:
        path: the folder, made if it is missing.
        labels: what all series are labelled with.
    """

    def __init__(self, path: str, labels: Mapping[str, str]) -> None:
        from prometheus_client.mmap_dict import MmapedDict, mmap_key

        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"peek-{os.getpid()}-{next(_file_numbers)}.db"
        self._labels = dict(labels)
        self._key_of = mmap_key
        prefixes = {"counter": "counter", "gauge": "gauge_mostrecent", "histogram": "histogram"}
        self._files = {
            kind: MmapedDict(str(Path(path, f"{prefix}_{name}"))) for kind, prefix in prefixes.items()
        }
        self._keys: dict[tuple[str, ...], str] = {}
        for file in self._files.values():
            finalize(self, file.close)

    def write(self, kind: str, metric: str, text: str, sample: str, value: float, **labels: str) -> None:
        """Give a sample of a metric a value.  O(1)."""
        place = (sample, *labels.values())
        key = self._keys.get(place)
        if key is None:
            ours = {**self._labels, **labels}
            key = self._keys[place] = self._key_of(metric, sample, list(ours), list(ours.values()), text)
        self._files[kind].write_value(key, value, time.time())
