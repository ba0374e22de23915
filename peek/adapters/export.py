"""Carries numbers from the process of an engine's scheduler to the `/metrics` of its server.

They go through files in `prometheus_client`'s multi-process format, read when `/metrics` is scraped.  Writing
a number costs a memory write; it then shows at the next scrape, and outlives a restart of the scheduler.

SGLang serves such files itself; so does vLLM with several API servers.  With one API server, a collector of
`peek` in that process reads them: see `offer`, an entry point in the group `vllm.general_plugins`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from weakref import finalize

ENGINES_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
OUR_FOLDER: Final = "PEEK_METRICS_DIR"
"""Set by `offer` for the processes that this one starts."""

ROOM: Final = 2**18
"""Size of a file in bytes; a series takes a few hundred and the model's name."""

_file_numbers = count()
_named: Final[set[str]] = set()
"""The name that this process has given its folder."""


def folder() -> str | None:
    """Return the folder to write to, None if nothing reads it."""
    return os.environ.get(ENGINES_FOLDER) or os.environ.get(OUR_FOLDER) or None


def offer() -> None:
    """Show on this process's `/metrics` what the processes that it starts will write.  Works once.

    vLLM calls this in each of its processes, whether or not `peek` is configured.  Therefore the folder is
    only named here, and made at the first write.  A separate program, such as a server that a notebook has
    started, names its own folder, even if its environment inherits a name.
    """
    named = os.environ.get(OUR_FOLDER)
    if os.environ.get(ENGINES_FOLDER) or (named and (parent_process() is not None or named in _named)):
        return
    try:
        from prometheus_client import REGISTRY

        path = Path(tempfile.gettempdir(), f"peek-metrics-{uuid4().hex}")
    except (ImportError, OSError):  # nothing to show them with, or nowhere to write
        return
    os.environ[OUR_FOLDER] = str(path)
    _named.add(str(path))
    REGISTRY.register(FolderCollector(path))
    atexit.register(_clean_up, path, os.getpid())


def _clean_up(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        shutil.rmtree(path, ignore_errors=True)


class FolderCollector:
    """A `prometheus_client` collector of the files that are in a folder at the time of a scrape."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterable[Any]:
        """Return the metrics of all files: counters added up, gauges with their latest value."""
        if not self._path.is_dir():
            return ()
        from prometheus_client.multiprocess import MultiProcessCollector

        merged: Iterable[Any] = MultiProcessCollector(None, str(self._path)).collect()
        return merged


def _with_room(path: Path) -> str:
    """Make a file of `ROOM` zeros; `OSError` on a full disk, on which a write to mapped memory is fatal."""
    new = path.with_suffix(".new")  # a scrape does not read this
    try:
        new.write_bytes(bytes(ROOM))
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)
    return str(path)


class SeriesFiles:
    """The series of one scheduler, all with `labels`, in one file for each kind of metric.

    The folder `path` is made if it is missing.  Needs `prometheus_client`.
    """

    def __init__(self, path: str, labels: Mapping[str, str]) -> None:
        from prometheus_client.mmap_dict import MmapedDict, mmap_key

        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"peek-{os.getpid()}-{next(_file_numbers)}.db"
        self._labels = dict(labels)
        self._key_of = mmap_key
        prefixes = {"counter": "counter", "gauge": "gauge_mostrecent", "histogram": "histogram"}
        self._files = {
            kind: MmapedDict(_with_room(Path(path, f"{prefix}_{name}"))) for kind, prefix in prefixes.items()
        }
        self._left = dict.fromkeys(prefixes, ROOM)
        self._keys: dict[tuple[str, ...], str] = {}
        self._values: dict[str, float] = {}
        for file in self._files.values():
            finalize(self, file.close)

    def write(self, kind: str, metric: str, text: str, sample: str, value: float, **labels: str) -> None:
        """Set a sample of a metric to a value.  O(1)."""
        place = (sample, *labels.values())
        key = self._keys.get(place)
        if key is None:
            ours = {**self._labels, **labels}
            key = self._key_of(metric, sample, list(ours), list(ours.values()), text)
            self._left[kind] -= len(key) + 32
            if self._left[kind] < 0:  # the file would grow, and the disk may have no room for it
                raise ValueError(f"the labels of {metric} are too long")
            self._keys[place] = key
        if self._values.get(key) != value:
            self._values[key] = value
            self._files[kind].write_value(key, value, time.time())
