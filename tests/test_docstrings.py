"""What `help()` shows is there on both builds: docstrings, and signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.programs import loaded

import peek
from peek.trie import keys

NO_SIGNATURE_OF_THEIR_OWN = (Exception, tuple)


def public_things() -> Iterator[tuple[str, Any, type | None]]:
    """Name, object, and class of it, of all that a user meets."""
    yield "backend", peek.backend, None
    for name in peek.__all__:
        thing = getattr(peek, name)
        if not inspect.isclass(thing):
            continue
        yield name, thing, None
        for member_name, member in vars(thing).items():
            is_public = not member_name.startswith("_")
            if is_public and (inspect.isroutine(member) or isinstance(member, property)):
                yield f"{name}.{member_name}", getattr(thing, member_name), thing


THINGS = {name: (thing, owner) for name, thing, owner in public_things()}


@pytest.mark.parametrize("name", list(THINGS))
def test_it_says_what_it_is(name: str) -> None:
    thing, owner = THINGS[name]
    text = inspect.getdoc(thing)
    if not text and owner is not None:  # a method may leave it to the class that declares it
        member = name.partition(".")[2]
        text = next(filter(None, (inspect.getdoc(vars(base).get(member)) for base in owner.__mro__)), None)
    assert text, name
    assert "filler" not in text
    assert "\n--\n" not in text


@pytest.mark.parametrize("name", [name for name, (thing, _) in THINGS.items() if callable(thing)])
def test_its_signature_shows(name: str) -> None:
    thing, _ = THINGS[name]
    if not inspect.isclass(thing) or not (
        issubclass(thing, NO_SIGNATURE_OF_THEIR_OWN) or getattr(thing, "_is_protocol", False)
    ):
        shown = inspect.signature(thing)  # raises where there is none
        assert all(not name.startswith("arg") for name in shown.parameters), "named as in the source"
        by_place = [each.name for each in shown.parameters.values() if each.kind is each.POSITIONAL_ONLY]
        assert by_place in ([], ["self"]), "each can be given by name"


@pytest.mark.parametrize(
    ("thing", "named_only"),
    [(peek.Planner, "lanes"), (peek.fleet.FleetPlanner.join, "cache_tokens")],
)
def test_what_is_given_by_name_only_shows(thing: Any, named_only: str) -> None:
    kinds = {each.name: each.kind for each in inspect.signature(thing).parameters.values()}
    first = next(name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY)
    assert first == named_only


@pytest.mark.parametrize(
    ("thing", "signature", "line"),
    [
        (
            peek.PendingTree,
            "(chained=False)",
            "Radix tree over the waiting requests, one root per namespace.",
        ),
        (peek.PendingTree.remove, "(self, request_id)", "Take a request out; returns its object."),
        (peek.PendingTree.has_sharing, "", "True if any two waiting requests share at least one symbol."),
        (peek.DualWalk.walk, "(self, cache)", "Write `request.cached_len` (tokens) for every request"),
        (keys.pack, "(key)", "Pack a key into int32 bytes."),
        (
            peek.Cluster,
            "(node_id, depth, size)",
            "The deepest node that a request shares with another: its id",
        ),
    ],
)
def test_both_builds_say_the_same(thing: Any, signature: str, line: str) -> None:
    assert str(inspect.getdoc(thing)).startswith(line)
    if signature:
        shown = inspect.signature(thing)
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in shown.parameters.values()]
        kinds = [p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in plain]
        assert str(inspect.Signature(kinds)) == signature


def test_quotes_and_other_letters_survive() -> None:
    assert "`bytes` (int32 little endian)" in str(peek.PendingRequest.__doc__)
    assert '>>> tree = PendingTree()\n>>> tree.insert("a", [1, 2, 3, 4])' in str(
        inspect.getdoc(peek.PendingTree)
    )


def test_a_docstring_without_a_place_ends_the_build(tmp_path: Path) -> None:
    setup = loaded(Path(__file__).parent.parent / "setup.py")
    translated = tmp_path / "translated.c"
    translated.write_text("int main(void) { return 0; }\n")
    with pytest.raises(SystemExit, match=r"mypyc left no place for the docstring of peek\."):
        setup.add_docstrings(translated)
    assert setup.c_literal('a "b"\n?\u00e9\\') == r"a \042b\042\012\077\303\251\134"
