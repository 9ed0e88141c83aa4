"""Products of 8-bit integers: exact on every processor, and refused by name where they are not."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle, Precision
from appliance.engine import ort
from appliance.engine.loading import load_for
from appliance.errors import BundleError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.once
QEMU = shutil.which("qemu-x86_64")
PLAIN = "0"
"""Value of the session option that leaves products as quick, and as wrong, as the processor has them."""


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """The processor is measured anew in each test."""
    ort.adds_in_16_bits.cache_clear()
    yield
    ort.adds_in_16_bits.cache_clear()


def without_vnni(a: Any, b: Any) -> int:
    """Sum of uint8 · int8 as vpmaddubsw and vpmaddwd give it: pairs are added in 16 bits, which saturate."""
    products = a.astype(np.int32) * b.astype(np.int32)
    pairs = np.clip(products[0::2] + products[1::2], -(2**15), 2**15 - 1)
    return int(pairs.sum())


def saturating(runtime: Any, options: Any) -> int:
    """`integer_product` on such a processor, with a runtime that knows no exact way."""
    a, b = np.full(ort.PRODUCT_DEPTH, 255, np.uint8), np.full(ort.PRODUCT_DEPTH, 127, np.int8)
    return without_vnni(a, b)


def of_precision(bundle: Bundle, precision: Precision) -> Bundle:
    return dataclasses.replace(bundle, manifest=dataclasses.replace(bundle.manifest, precision=precision))


def test_this_processors_products_are_exact() -> None:
    runtime = ort.import_runtime()
    assert ort.integer_product(runtime, ort.session_options(runtime, 1)) == 8_290_560


def test_the_emulation_gives_what_was_seen_on_an_epyc_with_avx2_alone() -> None:
    assert saturating(None, None) == 4_194_176


@pytest.mark.parametrize("precision", ["int8", "int8-qdq"])
def test_an_int8_bundle_is_refused_by_name_where_products_are_wrong(
    precision: Precision, short: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort, "integer_product", saturating)
    wrong = rf"precision {precision}: .*4,194,176 instead of 8,290,560.*fp32 or fp16"
    for backend in ("ort-cpu", "auto"):
        with pytest.raises(BundleError, match=wrong):
            load_for(of_precision(short, precision), EngineConfig(backend=backend, lanes=1))


def test_other_bundles_and_right_products_are_not_refused(
    short: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    ort.check_integers(of_precision(short, "int8"))
    monkeypatch.setattr(ort, "integer_product", saturating)
    ort.check_integers(short)


@pytest.mark.parametrize(("wrong", "expected"), [(False, PLAIN), (True, "1")])
def test_exact_products_are_asked_for_only_where_the_plain_ones_are_wrong(
    wrong: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = 1 if wrong else ort.EXACT_PRODUCT
    monkeypatch.setattr(ort, "integer_product", lambda runtime, options: found)
    options = ort.session_options(ort.import_runtime(), 1)
    assert options.get_session_config_entry("session.x64quantprecision") == expected


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None, reason="needs qemu-x86_64, which emulates a processor with AVX2 alone")
def test_the_real_runtime_is_exact_with_avx2_alone() -> None:
    code = (
        "from appliance.engine import ort; runtime = ort.import_runtime(); print("
        "ort.integer_product(runtime, runtime.SessionOptions()), "
        "ort.integer_product(runtime, ort.session_options(runtime, 1)))"
    )
    command = [str(QEMU), "-cpu", "Haswell", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["4194176", "8290560"], done.stderr
