"""Bundles that a daemon loads at its start, because `bundle.path` or a row of `text.languages` names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from appliance.config import Config, LanguageRow
from appliance.contract import bundle
from appliance.contract.bundle import Bundle
from appliance.errors import BundleError, ConfigError
from appliance.text.styles import style_of
from appliance.voices.index import VoiceIndex


def bundle_of(config: Config) -> Bundle:
    """Bundle of `bundle.path`, unverified, limited to the longest segment. Raises BundleError."""
    # The path is resolved now, because graphs are loaded later, when a link may point to another bundle.
    folder = Path(os.path.realpath(config.bundle.path))
    return bundle.read(folder, verify=False).up_to(config.engine.longest_s)


def bundles_of(config: Config) -> list[Bundle]:
    """All bundles that a configuration names, first the bundle of `bundle.path`.

    Raises what Residents raises.
    """
    first = bundle_of(config)
    return [first, *Residents(config, first).secondary.values()]


def check_secondary(secondary: Bundle, present: Bundle) -> None:
    """Raise BundleError for a bundle whose voices are prepared differently."""
    if secondary.manifest.prepares != present.manifest.prepares:
        raise BundleError(
            f"{secondary.folder}: its mel or its rule of references differs from that of bundle.path, for "
            "which the voices are prepared"
        )


class Residents:
    """Bundles that were loaded at the start. Each path of the configuration is resolved once.

    If an install moves the link at a path, the loaded bundle stays.
    """

    def __init__(self, config: Config, first: Bundle) -> None:
        """Load the bundles of rows. `first` is the bundle of `bundle.path`.

        Raises BundleError, and ConfigError for a bundle that cannot be used together with the first.
        """
        self._first = str(first.folder)
        self._folders = {config.bundle.path: self._first}
        self.secondary: dict[str, Bundle] = {}
        """Secondary bundles by key. The key is the real folder."""
        for code, row in config.text.languages.items():
            key = self._folder(row)
            if key in ("", self._first) or key in self.secondary:
                continue
            opened = bundle.read(Path(key), verify=False).up_to(config.engine.longest_s)
            try:
                check_secondary(opened, first)
            except BundleError as error:
                raise ConfigError(f"text.languages.{code}.bundle: {error}") from None
            if config.engine.idle_unload_s is not None:
                raise ConfigError(f"text.languages.{code}.bundle: is not possible with engine.idle_unload_s")
            self.secondary[key] = opened

    def _folder(self, row: LanguageRow) -> str:
        """Real folder of a row's bundle; "" if the row names none."""
        if row.bundle is None:
            return ""
        return self._folders.setdefault(row.bundle, os.path.realpath(row.bundle))

    def key_of(self, code: str, row: LanguageRow, present: Bundle) -> str:
        """Key of a row's bundle; "" stands for the current one. Raises ConfigError if it is not loaded."""
        folder = self._folder(row)
        if folder in self.secondary:
            return folder
        if folder not in ("", str(present.folder), self._first):
            raise ConfigError(f"text.languages.{code}.bundle: only a restart loads another bundle")
        return ""

    def doubts(self, config: Config, present: Bundle, voices: VoiceIndex) -> Iterator[str]:
        """Yields a warning for each row that cannot have its full effect."""
        yield from missing_voices(config, voices)
        for code, row in config.text.languages.items():
            if self._folder(row) == self._first != str(present.folder):
                yield (
                    f"text.languages.{code}.bundle: {self._first} was replaced by a swap; {present.folder} "
                    "speaks the row until a restart"
                )


def missing_voices(config: Config, voices: VoiceIndex) -> Iterator[str]:
    """Yields a warning for each row of `text.languages` whose voice or style is not stored."""
    for code, row in config.text.languages.items():
        if not voices.is_usable(row.voice):
            yield f"text.languages.{code}.voice: no voice {row.voice!r} can be used"
        elif style_of(row.style) not in ("", *voices.styles(row.voice)):
            yield f"text.languages.{code}.style: voice {row.voice!r} has no style {row.style!r}"
