"""The bound of the image's size: no variant that is built goes without one."""

from __future__ import annotations

from tests.image.test_variants import SIZES
from torchtap.variants import VARIANTS


def test_every_variant_that_is_built_has_a_measured_size() -> None:
    assert {name for name, row in VARIANTS.items() if row.built_here} == {*SIZES}
