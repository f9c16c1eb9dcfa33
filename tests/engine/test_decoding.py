"""The table of what each decode path can do, in errors."""

from __future__ import annotations

import pytest

from aerie.common.errors import UserError
from aerie.engine.decode_paths import (
    DECODE_PATHS,
    FEATURES,
    SIX_PROGRAMS,
    check_feature,
    decode_path_for,
)
from aerie.engine.variant_set import GUIDE, ROWS, VariantSet
from aerie.multi_launch_builder import Variant

BLOCKS = {
    ROWS: VariantSet(0, (Variant(8, 512),), ROWS),
    GUIDE: VariantSet(0, (Variant(8, 512),), GUIDE),
    SIX_PROGRAMS: VariantSet(128),
}


@pytest.mark.parametrize("name", DECODE_PATHS)
def test_what_a_family_cannot_do_is_reported_with_the_reason(name: str) -> None:
    path = decode_path_for(BLOCKS[name])
    assert path.name == name
    assert path.unsupported.keys() <= FEATURES.keys()
    for feature in FEATURES:
        if why := path.reason_against(feature):
            with pytest.raises(UserError, match=f"cannot be used with .*: {why}; load the model"):
                check_feature(feature, BLOCKS[name])
        else:
            check_feature(feature, BLOCKS[name])


def test_another_family_of_the_same_model_can_do_more() -> None:
    with pytest.raises(
        UserError, match=r"drafts cannot be used with decode='guide' .DECODE.: .* decode='rows'"
    ):
        check_feature("drafts", BLOCKS[GUIDE])
    check_feature("drafts", BLOCKS[GUIDE], ROWS)
