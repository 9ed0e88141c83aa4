"""The device's own segmenter and converter."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from appliance.text.tokens import chinese

CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.characters(min_codepoint=0x3000, max_codepoint=0xD7FF)
)


@given(st.text(CHARACTERS))
def test_segments_join_to_the_text(text):
    assert "".join(chinese.segment(text)) == text


@given(st.text(CHARACTERS))
def test_any_text_has_tokens(text):
    assert all(chinese.to_tokens(text))


def test_third_tones_shift_as_when_spoken():
    assert chinese.pinyin("你好") == ["ni2", "hao3"]


def test_dictionaries_are_loaded_when_first_needed():
    code = (
        "import sys, appliance.text.tokens.chinese; "
        "sys.exit('pypinyin' in sys.modules or 'rjieba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
