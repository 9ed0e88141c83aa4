"""A daemon that caches phrases, marks its samples and has secondary bundles."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.contract import bundle
from appliance.contract.bundle import Manifest
from tests.harness.daemons import BUNDLE, Shared, sharing

MARKED = {"watermark": str(BUNDLE.with_name("watermark"))}


def other_bundle(folder: Path, **changed: Any) -> Path:
    """The tiny bundle with other weights."""
    shutil.copytree(BUNDLE, folder)
    weights = folder / "modulation.onnx.data"
    (np.fromfile(weights, np.float32) * np.float32(1.1)).tofile(weights)
    manifest: Manifest = bundle.read(BUNDLE, verify=False).manifest
    bundle.write(folder, dataclasses.replace(manifest, family="other", **changed))
    return folder


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return other_bundle(tmp_path_factory.mktemp("bundles") / "other")


@pytest.fixture(scope="session")
def russian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that reads Russian letters."""
    folder = other_bundle(tmp_path_factory.mktemp("bundles") / "russian")
    letters = [chr(code) for code in (*range(0x430, 0x450), *range(0x410, 0x430))]
    vocabulary = (folder / bundle.VOCAB).read_text("utf-8").split("\n")
    vocabulary[20 : 20 + len(letters)] = letters
    (folder / bundle.VOCAB).write_text("\n".join(vocabulary), "utf-8")
    manifest = bundle.read(folder, verify=False).manifest
    text = dataclasses.replace(manifest.text, languages=("ru",))
    bundle.write(folder, dataclasses.replace(manifest, text=text))
    return folder


@pytest.fixture(scope="session")
def bundles_box(tmp_path_factory: pytest.TempPathFactory, other: Path, russian: Path) -> Iterator[Shared]:
    """The process's daemon that caches phrases, marks its samples and has these secondary bundles.

    It starts with a row for each bundle; a test applies the rows that it needs.
    """
    rows = {"de": {"voice": "ann", "bundle": str(other)}, "ru": {"voice": "ann", "bundle": str(russian)}}
    keys = {"text": {"languages": rows}, "cache": {"phrases_bytes": 64 << 20}, "audio": MARKED}
    with sharing(tmp_path_factory.mktemp("bundles"), **keys) as box:
        box.config["text"] = {}
        box.reset()
        yield box
