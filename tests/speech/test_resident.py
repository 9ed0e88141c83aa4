"""Bundles of a configuration, after an install that moves a link and after a swap."""

import shutil
from pathlib import Path

import pytest

from appliance.config import BundleConfig, Config, LanguageRow, TextConfig
from appliance.contract import bundle
from appliance.errors import ConfigError
from appliance.speech.resident import Residents, bundle_of
from appliance.voices.records import Place
from tests.harness.daemons import BUNDLE, reference_wav, store_in


def test_a_path_is_resolved_when_it_is_first_named(tmp_path: Path) -> None:
    link, second = tmp_path / "link", tmp_path / "second"
    shutil.copytree(BUNDLE, second)
    link.symlink_to(BUNDLE)
    paths = {"en": None, "de": second, "fr": BUNDLE, "it": link, "es": tmp_path / "third"}
    rows = {code: LanguageRow("ann", bundle=path) for code, path in paths.items() if code != "es"}
    config = Config(bundle=BundleConfig(link), text=TextConfig(languages=rows))
    residents = Residents(config, first := bundle_of(config))
    assert [*residents.secondary] == [str(second)]
    link.unlink()
    link.symlink_to(second)
    swapped = bundle.read(second, verify=False)
    for present in (first, swapped):
        keys = [residents.key_of(code, row, present) for code, row in rows.items()]
        assert keys == ["", str(second), "", ""]
    with pytest.raises(ConfigError, match=r"text.languages.es.bundle: only a restart"):
        residents.key_of("es", LanguageRow("ann", bundle=paths["es"]), first)
    store = store_in(tmp_path)
    store.create(Place("ann"), reference_wav(), "Hello there.")
    assert not [*residents.doubts(config, first, store.index)]
    doubts = [line.partition(":")[0] for line in residents.doubts(config, swapped, store.index)]
    assert doubts == ["text.languages.fr.bundle", "text.languages.it.bundle"]
    rows |= {"en": LanguageRow("bob"), "de": LanguageRow("ann", "sad", second)}
    doubts = [line.partition(":")[0] for line in residents.doubts(config, first, store.index)]
    assert doubts == ["text.languages.en.voice", "text.languages.de.style"]
