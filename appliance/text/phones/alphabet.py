"""Phones of US English in misaki's notation. A vowel's stress is part of its token."""

from __future__ import annotations

from appliance.contract.placement import MARKS, SPACE

CONSONANTS = "bdfhjklmnpstvwzðŋɡɹʃʒʤʧθT"
"""Consonants; T is a flap."""
VOWELS = "AIOWYiuæɑɔəɛɜɪʊʌᵊᵻɐ"
"""Vowels; A, I, O, W, Y are diphthongs: say, sigh, so, how, boy."""
STRESSES = ("", "ˈ", "ˌ")
TOKENS = (SPACE, *CONSONANTS, *(stress + vowel for stress in STRESSES for vowel in VOWELS), *MARKS)
"""All tokens, in the order of a vocabulary's lines."""
ALL_TOKENS = frozenset(TOKENS)

_ALIKE = {
    **dict.fromkeys("—–:;", ","),
    **{"…": ".", "ʔ": "t", "ɾ": "T", "ɚ": "ɜ", "r": "ɹ", "g": "ɡ", "x": "k", "ɬ": "l", "ɒ": "ɑ", "ç": "h"},
    **{"y": "j", "c": "k", "q": "k", "a": "æ", "e": "A", "o": "O", "Q": "O"},
}
"""Symbol of another notation, or mark → the symbol used here. Other symbols are dropped."""


def folded(phonemes: str) -> list[tuple[str, int, int]]:
    """Tokens of a string of misaki's, each with the first and end index of its symbols."""
    spans: list[tuple[str, int, int]] = []
    stress, begin = "", 0
    for place, symbol in enumerate(phonemes):
        if symbol in STRESSES[1:]:
            stress, begin = symbol, place
            continue
        symbol = _ALIKE.get(symbol, symbol)
        if symbol not in ALL_TOKENS:
            continue
        stressed = bool(stress) and symbol in VOWELS
        spans.append((stress + symbol if stressed else symbol, begin if stressed else place, place + 1))
        stress = "" if stressed else stress
    return spans


def tokens(phonemes: str) -> list[str]:
    return [token for token, _, _ in folded(phonemes)]
