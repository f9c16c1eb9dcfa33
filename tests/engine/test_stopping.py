"""Stop strings: the same end however the text is cut into pieces, and nothing held back without need."""

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aerie.engine.stop_strings import StopStrings


def splittings(text):
    """Every way to cut a text into pieces."""
    places = range(1, len(text))
    for count in range(len(text)):
        for cuts in combinations(places, count):
            ends = (0, *cuts, len(text))
            yield [text[first:last] for first, last in pairwise(ends)]


def end_of(text, stops):
    """Where the text ends, and by which stop string: looked at after every character."""
    for length in range(1, len(text) + 1):
        if ended := [stop for stop in stops if text[:length].endswith(stop)]:
            longest = max(ended, key=len)
            return text[: length - len(longest)], longest
    return text, None


CASES = [
    ("ababcabd", ["abc"]),
    ("aaaab", ["aab"]),
    ("abcde", ["cd", "abcde"]),  # the first that is complete, not the first that begins
    ("abcde", ["e", "cde", "de"]),
    ("abcdefgh", ["xyz"]),
    ("abc", ["abcd", "bc"]),
    ("a\nb\n\nc", ["\n\n"]),
    ("stop", ["stop"]),
    ("nöch ein", ["h e", "ö"]),
    ("abcab", ["cabd"]),  # held back to the end, and given out
    ("text", []),
]


@pytest.mark.parametrize(("text", "stops"), CASES, ids=str)
def test_every_splitting_ends_at_the_same_place(text, stops):
    for pieces in splittings(text):
        stopping = StopStrings(stops)
        assert ("".join(stopping.truncate(pieces)), stopping.found) == end_of(text, stops)


@given(st.text("ab", max_size=9), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@example("abab", ["ba", "abab"])
def test_every_splitting_of_drawn_texts(text, stops):
    for pieces in splittings(text):
        stopping = StopStrings(stops)
        assert ("".join(stopping.truncate(pieces)), stopping.found) == end_of(text, stops)


def test_only_what_may_begin_a_stop_string_is_held_back():
    stopping = StopStrings(["###", "\n\n"])
    assert [stopping.feed(piece) for piece in ("a#", "#b", "\n", "c##")] == ["a", "##b", "", "\nc"]
    assert stopping.flush() == "##"
    assert stopping.flush() == ""


def test_nothing_comes_after_a_stop_string():
    stopping = StopStrings(["."])
    assert [stopping.feed(piece) for piece in ("a.b", "c", ".")] == ["a", "", ""]
    assert stopping.flush() == ""
    assert stopping.found == "."


def test_no_piece_is_taken_after_the_end():
    taken = []

    def pieces():
        for piece in ("a", "b.", "c"):
            taken.append(piece)
            yield piece

    assert list(StopStrings(["."]).truncate(pieces())) == ["a", "b"]
    assert taken == ["a", "b."]
