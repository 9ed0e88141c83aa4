"""Checks a transcript for the bundle that will read it: letters that the bundle lacks, digits, foreign
scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.contract.bundle import Bundle
from appliance.errors import InvalidReference
from appliance.text.languages import resolve
from appliance.text.scripts import LETTERS
from appliance.text.spelling import Spelling

MOST_UNREAD = 0.5
"""Largest share of a transcript's letters that a bundle may lack. If it lacked all letters, 20 of 54 words of
replies were wrong.
"""
SHOWN = 12
"""Most characters that a message names."""


@dataclass(frozen=True)
class Reader:
    """The way in which one bundle reads a transcript."""

    spelling: Spelling
    languages: Sequence[str] = ()

    @classmethod
    def of(cls, bundle: Bundle) -> Reader:
        """Reader of a bundle. Raises BundleError."""
        return cls(Spelling(bundle.vocabulary()), bundle.manifest.text.languages)

    def warnings(self, transcript: str) -> tuple[str, ...]:
        """Reasons to expect bad replies, as sentences.

        Raises InvalidReference if most letters cannot be read.
        """
        letters = [c for c in self.spelling.fitted(transcript) if c.isalnum()]
        unread = [c for c in letters if self.spelling.loses(c)]
        texts = []
        if unread:
            share = len(unread) / len(letters)
            instead = "leaves them out" if self.spelling.leaves_out else "reads them as spaces"
            lost = (
                f"{share:.0%} of its letters are not in the bundle's vocabulary, which {instead}: "
                f"{_listed(unread)}"
            )
            if share > MOST_UNREAD:
                raise InvalidReference(
                    "transcript", f"{lost}; at most {MOST_UNREAD:.0%} are allowed: another bundle speaks this"
                )
            texts.append(f"the transcript cannot be read whole, and replies lose words: {lost}")
        if digits := [c for c in letters if c.isdecimal()]:
            texts.append(f"the transcript has digits ({_listed(digits)}): write them in words")
        if letters and self._is_foreign(letters):
            texts.append(
                f"the transcript is in another script than the bundle speaks ({', '.join(self.languages)}): "
                "replies may be unintelligible"
            )
        return tuple(texts)

    def _is_foreign(self, letters: list[str]) -> bool:
        """True if most letters are of scripts that no language of the bundle has."""
        scripts = {script for code in self.languages for script in resolve(code).scripts}
        own = f"[{''.join(LETTERS[script] for script in scripts)}]"
        return bool(scripts) and 2 * len(re.findall(own, "".join(letters))) < len(letters)


def _listed(characters: list[str]) -> str:
    return " ".join(list(dict.fromkeys(characters))[:SHOWN])
