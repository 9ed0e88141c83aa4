"""Known weights: repository, files, architecture, language and stated licence, one row each.

Languages and licences are as model cards or upstream's SHARED.md (f5-tts 1.1.22) state them, none verified in
law; a repository's licence is not its weights' licence. `unverified` names what was read elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from appliance.contract.mel import Kind
from appliance.contract.tokens import Tokenizer

NOT_FOR_MONEY = "not for money: no paid or monetised use"
DOUBTFUL = "doubtful: tuned from weights of CC-BY-NC-4.0"
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class VocoderWeights:
    repository: str
    files: tuple[str, ...]
    licence: str
    sha256: str | None = None
    """Hash of the weights."""

    @property
    def folder(self) -> str:
        return self.repository.split("/")[1]


VOCODERS: dict[Kind, VocoderWeights] = {
    "vocos": VocoderWeights(
        "charactr/vocos-mel-24khz",
        ("config.yaml", "pytorch_model.bin"),
        "MIT",
        "97ec976ad1fd67a33ab2682d29c0ac7df85234fae875aefcc5fb215681a91b2a",
    ),
    "bigvgan": VocoderWeights(
        "nvidia/bigvgan_v2_24khz_100band_256x", ("config.json", "bigvgan_generator.pt"), "MIT"
    ),
}


@dataclass(frozen=True)
class Known:
    name: str
    repository: str
    checkpoint: str
    vocab: str
    family: str
    """Name in `families.NAMED` whose architecture it has."""
    languages: tuple[str, ...]
    """ISO 639-1, the main one first."""
    licence: str
    note: str = ""
    """Uses that the licence forbids or leaves in doubt."""
    config: str = ""
    """YAML file of the repository that says more than `family`, which `bundle` is to read."""
    vocab_repository: str = ""
    vocoder: Kind = "vocos"
    own_vocoder: bool = False
    """True if the checkpoint's file holds the vocoder too."""
    tokenizer: Tokenizer = "pinyin"
    weights: Literal["ema", "raw"] = "ema"
    gated: bool = False
    dialects: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    """Dialect → signs before and after each text by which the weights know it; the usual one first."""
    sha256: str | None = None
    """Hash of the checkpoint; None: recorded at its first download."""
    unverified: str = ""

    @property
    def source(self) -> str:
        return f"{HUB}/{self.repository}"

    @property
    def warning(self) -> str:
        return "; ".join(filter(None, (self.note, "gated: accept its terms there" if self.gated else "")))


MARKED = dict(
    zip(
        ("UNK", "MSA", "SAU", "UAE", "ALG", "IRQ", "EGY", "MAR", "OMN", "TUN", "LEV", "SDN", "LBY"),
        ((f"{number}〈", "〉") for number in "⓪①②③④⑤⑥⑦⑧⑨⑩⑪⑫"),
        strict=True,
    )
)
"""Dialects of Habibi's unified model, as habibi-tts 0.1.1 marks them (`model/utils.py`)."""
LIBRITTS, EMILIA = "LibriTTS (CC-BY-4.0)", "Emilia (CC-BY-NC-4.0)"
"""Training data of ZipVoice's weights."""


def _official(name: str, checkpoint: str, vocab: str, family: str, **more: object) -> Known:
    row = (name, "SWivid/F5-TTS", f"{name}/{checkpoint}", vocab, family, ("en", "zh"), "CC-BY-NC-4.0")
    return Known(*row, NOT_FOR_MONEY, **more)  # type: ignore[arg-type]


def _tuned(name: str, repository: str, checkpoint: str, languages: str, **more: object) -> Known:
    """Row of a fine-tune with v0's flags, as most have; those of SHARED.md print them."""
    row: dict[str, object] = {
        "vocab": "vocab.txt",
        "family": "F5TTS_Base",
        "licence": "CC-BY-NC-4.0",
        "note": NOT_FOR_MONEY,
    }
    tongues = tuple(languages.split())
    return Known(name, repository, checkpoint, languages=tongues, **row | more)  # type: ignore[arg-type]


def _zipvoice(name: str, folder: str, languages: tuple[str, ...], data: str, unverified: str = "") -> Known:
    """Row of a folder of k2-fsa/ZipVoice, whose card names folders and training data, and no licence."""
    note = (
        "doubtful: no licence is stated, the makers are asked (k2-fsa/ZipVoice, issue 190); trained from "
        f"scratch on {data}"
    )
    return Known(
        name,
        "k2-fsa/ZipVoice",
        f"{folder}/model.pt",
        f"{folder}/tokens.txt",
        name,
        languages,
        "none stated",
        note,
        tokenizer="letters" if data == LIBRITTS else "emilia",
        weights="raw",
        unverified=unverified,
    )


def _habibi(name: str, folder: str, steps: int, *, free: bool, **more: object) -> Known:
    """Row of SWivid/Habibi-TTS, whose card states two licences for its folders."""
    if free:
        note = (
            "doubtful: the card names F5-TTS, whose weights are CC-BY-NC-4.0, as its base; the makers are "
            "asked (SWivid/Habibi-TTS, issue 9)"
        )
    else:
        note = f"{NOT_FOR_MONEY}; what is made from it stands under the same terms"
    return Known(
        name,
        "SWivid/Habibi-TTS",
        f"{folder}/model_{steps}.safetensors",
        f"{folder}/vocab.txt",
        "F5TTS_v1_Base",
        ("ar",),
        "Apache-2.0" if free else "CC-BY-NC-SA-4.0",
        note,
        tokenizer="char",
        unverified="flags and file names, as in habibi-tts 0.1.1",
        **more,  # type: ignore[arg-type]
    )


_ROWS = (
    _official(
        "F5TTS_v1_Base",
        "model_1250000.safetensors",
        "F5TTS_v1_Base/vocab.txt",
        "F5TTS_v1_Base",
        sha256="670900fd14e6c458b95da6e9ed317cdb20dbaf7a1c02ac06a05475a9d32b6a38",
    ),
    _official(
        "F5TTS_v1_Base_no_zero_init", "model_1250000.safetensors", "F5TTS_v1_Base/vocab.txt", "F5TTS_v1_Base"
    ),
    _official(
        "F5TTS_Base",
        "model_1200000.safetensors",
        "F5TTS_Base/vocab.txt",
        "F5TTS_Base",
        sha256="4180310f91d592cee4bc14998cd37c781f779cf105e8ca8744d9bd48ca7046ae",
    ),
    _official(
        "F5TTS_Base_bigvgan", "model_1250000.pt", "F5TTS_Base/vocab.txt", "F5TTS_Base", vocoder="bigvgan"
    ),
    _tuned(
        "SILMA",
        "silma-ai/silma-tts",
        "model.pt",
        "ar en",
        family="F5TTS_v1_Small",
        licence="Apache-2.0",
        note="trained from scratch",
        tokenizer="char",
        weights="raw",
    ),
    _tuned(
        "OpenF5-TTS-Base",
        "mrfakename/OpenF5-TTS-Base",
        "model.pt",
        "en",
        family="F5TTS_v1_Base",
        config="config.yaml",
        licence="Apache-2.0",
        note="trained from scratch; called an alpha",
        unverified="flags and file names",
    ),
    _tuned(
        "IndicF5",
        "ai4bharat/IndicF5",
        "model.safetensors",
        "hi as bn gu kn ml mr or pa ta te",
        vocab="checkpoints/vocab.txt",
        licence="MIT",
        note="doubtful: arXiv 2505.20693 says that it is tuned from English F5-TTS, whose official weights "
        "are CC-BY-NC-4.0",
        own_vocoder=True,
        gated=True,
        unverified="flags",
    ),
    _tuned(
        "F5-Hindi-24KHz",
        "SPRINGLab/F5-Hindi-24KHz",
        "model_2500000.safetensors",
        "hi",
        family="F5TTS_Small",
        licence="CC-BY-4.0",
        note="trained from scratch; name its authors",
    ),
    _tuned(
        "F5-Spanish",
        "jpgallegoar/F5-Spanish",
        "model_1200000.safetensors",
        "es",
        licence="CC0-1.0",
        note=DOUBTFUL,
        unverified="flags and file names",
    ),
    _tuned(
        "F5-TTS-Latvian",
        "RaivisDejus/F5-TTS-Latvian",
        "model.safetensors",
        "lv",
        licence="CC0-1.0",
        note=DOUBTFUL,
    ),
    _tuned("F5-TTS-German", "hvoss-techfak/F5-TTS-German", "model_f5tts_german.pt", "de"),
    _tuned(
        "F5-TTS_Finnish_Model",
        "AsmoKoskinen/F5-TTS_Finnish_Model",
        "model_common_voice_fi_vox_populi_fi_20241206.safetensors",
        "fi",
    ),
    _tuned(
        "F5-French-MixedSpeakers-reduced",
        "RASPIAUDIO/F5-French-MixedSpeakers-reduced",
        "model_last_reduced.pt",
        "fr",
    ),
    _tuned("F5-TTS-italian", "alien79/F5-TTS-italian", "model_159600.safetensors", "it"),
    _tuned(
        "F5TTS_JA",
        "Jmica/F5TTS",
        "JA_21999120/model_21999120.pt",
        "ja",
        vocab="JA_21999120/vocab_japanese.txt",
    ),
    _tuned("F5-TTS-Russian", "hotstone228/F5-TTS-Russian", "model_last.safetensors", "ru"),
    _tuned(
        "F5-TTS_RUSSIAN",
        "Misha24-10/F5-TTS_RUSSIAN",
        "F5TTS_v1_Base_v2/model_last_inference.safetensors",
        "ru",
        vocab="F5TTS_v1_Base/vocab.txt",
        family="F5TTS_v1_Base",
        unverified="all of it; it has other checkpoints too, and stress is written as + before a vowel",
    ),
    _tuned(
        "F5-TTS-pt-br",
        "firstpixel/F5-TTS-pt-br",
        "pt-br/model_last.safetensors",
        "pt",
        vocab="F5TTS_Base/vocab.txt",
        vocab_repository="SWivid/F5-TTS",
        unverified="all of it; it is said to want small letters",
    ),
    _habibi("Habibi-Unified", "Unified", 200_000, free=False, dialects=MARKED),
    *(
        _habibi(f"Habibi-{name}", f"Specialized/{name}", steps, free=free)
        for name, steps, free in (
            ("MSA", 200_000, True),
            ("SAU", 200_000, False),
            ("UAE", 100_000, False),
            ("ALG", 100_000, True),
            ("IRQ", 100_000, True),
            ("EGY", 100_000, True),
            ("MAR", 100_000, True),
        )
    ),
    _zipvoice("ZipVoice", "zipvoice", ("en", "zh"), EMILIA),
    _zipvoice("ZipVoice-Distill", "zipvoice_distill", ("en", "zh"), EMILIA),
    _zipvoice(
        "ZipVoice-LibriTTS",
        "zipvoice_libritts",
        ("en",),
        LIBRITTS,
        "the name tokens.txt, as of other folders",
    ),
    _zipvoice(
        "ZipVoice-LibriTTS-Distill",
        "zipvoice_distill_libritts",
        ("en",),
        LIBRITTS,
        "file names, as of other folders",
    ),
)
KNOWN: dict[str, Known] = {row.name: row for row in _ROWS}


def known(name: str) -> Known | None:
    """Row by its name or its repository, if that has one."""
    there = [row for row in _ROWS if row.repository == name]
    return KNOWN.get(name) or (there[0] if len(there) == 1 else None)


def table() -> str:
    """Markdown table of all rows; neighbours that differ by their names alone share a line."""
    lines = ["| `fetch` | repository | languages | stated licence | note |", "|---|---|---|---|---|"]
    for cells, rows in itertools.groupby(_ROWS, _cells):
        names = ", ".join(f"`{row.name}`" for row in rows)
        lines.append(f"| {' | '.join((names, *cells))} |")
    return "\n".join(lines)


def _cells(row: Known) -> tuple[str, str, str, str]:
    """Columns of the table: repository, languages, licence, note."""
    note = "; ".join(filter(None, (row.warning, row.unverified and f"unverified: {row.unverified}")))
    return row.repository, ", ".join(row.languages), row.licence, note
