"""Fetches public traces into a folder and checks that they are the ones of the project's figures.

    python -m bench.arena.traces FOLDER [--only mooncake-conversation ...]
    peek simulate --trace FOLDER/mooncake-conversation.jsonl --policy fcfs+lru --policy peek

Each trace comes from one commit of its publisher, and only a file with the right checksum is kept.  No trace
is part of the project, and each has its own licence.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

_MOONCAKE: Final = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28"
    "/FAST25-release/traces"
)
_AZURE: Final = (
    "https://raw.githubusercontent.com/Azure/AzurePublicDataset/b469a113cedca53ddc3bdea71a143dc4b7d8700c/data"
)


class Trace(NamedTuple):
    """A published file: its URL, its checksum and its licence."""

    url: str
    sha256: str
    licence: str


TRACES: Final = {
    "mooncake-conversation.jsonl": Trace(
        f"{_MOONCAKE}/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        "Apache-2.0",
    ),
    "mooncake-synthetic.jsonl": Trace(
        f"{_MOONCAKE}/synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        "Apache-2.0",
    ),
    "azure-code.csv": Trace(
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        "CC-BY-4.0",
    ),
    "azure-conversation.csv": Trace(
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        "CC-BY-4.0",
    ),
}
TIMEOUT_S: Final = 60.0
CHUNK: Final = 1 << 20


class WrongChecksum(Exception):
    """A fetched file is not the one of the project's figures."""


def fetch(name: str, trace: Trace, folder: Path) -> Path:
    """Return the path of a trace, fetched if needed; after `WrongChecksum` or `OSError` no new file stays."""
    path = folder / name
    if path.exists() and digest_of(path) == trace.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{name}.", delete=False) as partial:
        part = Path(partial.name)
        try:
            with urllib.request.urlopen(trace.url, timeout=TIMEOUT_S) as answer:
                while piece := answer.read(CHUNK):
                    partial.write(piece)
            partial.flush()
            found = digest_of(part)
            if found != trace.sha256:
                raise WrongChecksum(f"{trace.url} has sha256 {found}, not {trace.sha256}")
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    return path


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=list(TRACES), choices=list(TRACES), metavar="NAME")
    arguments = parser.parse_args()
    for name in arguments.only:
        try:
            print(f"{fetch(name, TRACES[name], arguments.folder)}  {TRACES[name].licence}", flush=True)
        except (OSError, WrongChecksum) as error:
            sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
