"""Lists of variants: the default set of a model, and what VARIANTS may say."""

import pytest

from aerie.common.errors import UserError
from aerie.engine.planner import plan
from aerie.engine.variants import default_variants, parse_variants
from aerie.multi_launch_builder import Variant


def pairs(chosen):
    return {(one.rows, one.context) for one in chosen}


def every(rows, contexts):
    return {(n, m) for n in rows for m in contexts if n <= m}


LARGE = (1, 8, 32, 128, 512, 2048)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (256, every((1, 8, 32, 128), (512,))),
        (1024, every((1, 8, 32, 128), (512, 1024))),
        (2048, every(LARGE, (512, 2048))),
        (4096, every(LARGE, (512, 2048, 4096))),
        (5000, every(LARGE, (512, 2048, 8192))),
        (131072, every(LARGE, (512, 2048, 8192))),
    ],
)
def test_default_sets(positions, expected):
    chosen = default_variants(positions)
    assert pairs(chosen) == expected
    assert len(chosen) == len(expected)
    held = min(positions, 8192)
    assert plan(1, held - 1, chosen)[0].context >= held


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,8,32,128,512,2048x512,2048,8192", every(LARGE, (512, 2048, 8192))),
        ("8x512 128x2048", {(8, 512), (128, 2048)}),
        ("  8X512\t8,16x512,1024 ", {(8, 512), (16, 512), (8, 1024), (16, 1024)}),
    ],
)
def test_a_list_is_all_pairs_of_its_groups(text, expected):
    chosen = parse_variants(text)
    assert pairs(chosen) == expected
    assert list(chosen) == sorted(set(chosen))
    assert chosen[0] == Variant(chosen[0].rows, chosen[0].context)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"VARIANTS is empty; write rows x contexts, such as 1,8,128x512,2048, which are all pairs"),
        ("8", r"VARIANTS: '8' is not rows, an x and contexts; write rows x contexts"),
        ("8x512;128x2048", r"'8x512;128x2048' is not rows, .* spaces between them, such as '8x512 128x2048'"),
        ("8x512, 16x512", r"VARIANTS: '8x512,' is not rows"),
        ("8x-512", r"VARIANTS: '8x-512' is not rows"),
        ("7x512", r"VARIANTS: '7x512': .* no programs for rows \(AR\)=7, .* the nearest legal value is 8"),
        ("8x500", r"VARIANTS: '8x500': .* no programs for context \(CL\)=500, .* nearest legal value is 512"),
        (
            "8x512,768",
            r"context \(CL\) 768 has programs for layers with a sliding window alone; the legal ones are "
            "512, 1024, 2048",
        ),
        ("7,8x512", r"no programs for rows \(AR\)=7"),
        ("1024,2048x512", r"'1024,2048x512' leaves nothing: 1024 rows do not fit a context of 512; name"),
    ],
)
def test_what_is_no_list_is_refused_with_how_it_is_written(text, message):
    with pytest.raises(UserError, match=message):
        parse_variants(text)
