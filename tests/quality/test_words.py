"""Word timings of the shipped voices, against an aligner that knows nothing of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.request import Segmentation
from tests.quality.judges import Aligner
from tests.quality.mouth import Mouth, references_in
from tests.quality.words import BUNDLE, LINES, measure

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MAX_MEDIAN_S = 0.12
"""The shipped voices come to 0.06."""


@pytest.mark.parametrize("how", Segmentation)
def test_timings_are_near_the_aligners(
    aligner: Aligner, root: Path, tmp_path: Path, how: Segmentation
) -> None:
    references = references_in(root / BUNDLE.parent / "voices")
    with Mouth(root / BUNDLE, references, tmp_path) as mouth:
        found = measure(
            mouth, LINES.read_text("utf-8").splitlines()[:10], list(references)[-1:], how, aligner
        )
    assert len(found.heard) > 200
    assert np.median(found.planned) <= MAX_MEDIAN_S
    assert np.median(found.heard) <= MAX_MEDIAN_S
