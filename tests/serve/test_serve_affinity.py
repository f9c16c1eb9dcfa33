"""Which replica is asked for a prompt, by what each was sent and has to do."""

from __future__ import annotations

from aerie.serve.prefix_affinity import MAX_PREFIX_KEYS, PrefixAffinity, prefix_keys

IDLE = {"a": 0.0, "b": 0.0, "c": 0.0}
SYSTEM = list(range(128))


def keys(*tokens: int) -> list[bytes]:
    """Of a prompt that begins with two pages that all have."""
    return prefix_keys([*SYSTEM, *tokens])


def test_full_pages_alone_have_keys() -> None:
    assert prefix_keys(range(63)) == []
    assert len(prefix_keys(range(64))) == 1
    assert len(prefix_keys(range(191))) == 2
    assert prefix_keys(range(191)) == prefix_keys(range(128))
    assert len(prefix_keys(range(64 * MAX_PREFIX_KEYS * 2))) == MAX_PREFIX_KEYS


def test_a_key_covers_the_whole_prefix() -> None:
    ours, theirs = prefix_keys([*range(64), *range(64)]), prefix_keys([*range(1, 65), *range(64)])
    assert ours[0] != theirs[0]
    assert ours[1] != theirs[1]
    assert ours[1] != ours[0]


def test_it_goes_where_the_longest_beginning_is() -> None:
    affinity = PrefixAffinity()
    affinity.record(keys(), "a")
    affinity.record(keys(*range(64)), "b")
    assert affinity.choose(keys(*range(70)), {**IDLE, "b": 5}) == "b"
    assert affinity.choose(keys(*range(7, 80)), {**IDLE, "a": 5, "b": 6}) == "a"


def test_one_with_too_much_to_do_is_passed_over() -> None:
    affinity = PrefixAffinity(slack=4)
    affinity.record(keys(), "a")
    assert affinity.choose(keys(), {"a": 4, "b": 0}) == "a"
    assert affinity.choose(keys(), {"a": 5, "b": 0}) == "b"


def test_a_lost_replica_is_not_chosen() -> None:
    affinity = PrefixAffinity()
    affinity.record(keys(), "a")
    assert affinity.choose(keys(), {"b": 3}) == "b"


def test_an_unknown_prefix_goes_to_the_least_loaded_replica() -> None:
    assert PrefixAffinity().choose(keys(), {"a": 2, "b": 1, "c": 2}) == "b"
    assert PrefixAffinity().choose([], {"a": 2, "b": 1}) == "b"


def test_fronts_that_have_seen_nothing_agree_and_spread() -> None:
    prompts = [prefix_keys(range(start, start + 64)) for start in range(30)]
    chosen = [PrefixAffinity().choose(prompt, IDLE) for prompt in prompts]
    assert chosen == [PrefixAffinity().choose(prompt, dict(reversed(IDLE.items()))) for prompt in prompts]
    assert set(chosen) == set(IDLE)


def test_the_longest_unused_is_forgotten_from_its_end() -> None:
    affinity = PrefixAffinity(max_tracked=4)
    affinity.record(first := prefix_keys(range(192)), "a")
    affinity.record(prefix_keys(range(1, 129)), "b")
    busy = {"a": 1.0, "b": 0.0, "c": 0.0}
    assert affinity.choose(first, busy) == "a"
    assert affinity.choose(first[:1], busy) == "a"
    assert affinity.choose(prefix_keys(range(1, 129)), {**IDLE, "b": 1}) == "b"
    affinity.record(prefix_keys(range(2, 258)), "c")
    assert affinity.choose(first, busy) != "a"
