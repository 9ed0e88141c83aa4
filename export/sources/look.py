"""A training's folder as its trainer left it: what is in it, and the `bundle` command for it.

No tensor is read, and torch is not imported. Layouts are those of f5-tts 1.1.22 (`trainer.py`,
`finetune_cli.py`, `finetune_gradio.py`, hydra's folders), k2-fsa/ZipVoice at 2f7326f, Vocos' LightningCLI,
and HiFi-GAN's and BigVGAN's `train.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.bundle import MANIFEST
from appliance.contract.mel import Kind
from appliance.contract.tokens import Vocabulary, read_vocabulary
from appliance.errors import BundleError
from export.sources.header import (
    NO_DIT,
    STUDENT,
    TRAINED_VOCODERS,
    VOCODER_FILES,
    CheckpointError,
    Header,
    check_names,
    config_beside,
    newest,
    numbers,
    read_header,
    some,
    vocoder_file,
)
from export.sources.licence import stated_by
from export.sources.reading import guess
from export.sources.weights import KNOWN, VOCODERS

F5_MARK = "text_embed.text_embed.weight"
ZIPVOICE_MARK = "fm_decoder."
EMBED = "embed.weight"
GUIDANCE = "guidance_scale_embed"
CHECKPOINTS = (
    *("iter-*-avg-*.pt", "epoch-*-avg-*.pt"),
    *("model_last.pt", "model_last.safetensors", "model_*[0-9].pt", "model_*[0-9].safetensors"),
    *("checkpoint-*[0-9].pt", "epoch-*[0-9].pt", "best-valid-loss.pt", "best-train-loss.pt"),
    *("model.safetensors", "model.pt", "last*.ckpt", "*.safetensors", "*.ckpt", "*.pt"),
    *("*.gguf", "*.npz"),
)
"""Files to export, the best first: ZipVoice's averages, which its recipes speak from, then the newest."""
NOT_TRAINED = re.compile(r"pretrained_|bad-model|batch-|optimizer|random_states|scheduler")
"""Begin of names of what a training starts from or restarts with."""
FLAGS = {
    "F5TTS_v1_Base": (1024, 22, "pe_attn_head: null, text_mask_padding: true"),
    "F5TTS_Base": (1024, 22, "pe_attn_head: 1, text_mask_padding: false"),
    "F5TTS_v1_Small": (768, 18, "pe_attn_head: null, text_mask_padding: true"),
    "F5TTS_Small": (768, 18, "pe_attn_head: 1, text_mask_padding: false"),
}
"""Width, depth and flags of `families.f5.NAMED`, which cannot be imported without torch."""
PUBLISHED_ZIPVOICE = {
    "fm_decoder_downsampling_factor": [1, 2, 4, 2, 1],
    "fm_decoder_num_layers": [2, 2, 4, 4, 4],
    "fm_decoder_cnn_module_kernel": [31, 15, 7, 15, 31],
    "fm_decoder_feedforward_dim": 1536,
    "fm_decoder_num_heads": 4,
    "fm_decoder_dim": 512,
    "text_encoder_num_layers": 4,
    "text_encoder_feedforward_dim": 512,
    "text_encoder_cnn_module_kernel": 9,
    "text_encoder_num_heads": 4,
    "text_encoder_dim": 192,
    "query_head_dim": 32,
    "value_head_dim": 12,
    "pos_head_dim": 4,
    "pos_dim": 48,
    "time_embed_dim": 192,
    "text_embed_dim": 192,
    "feat_dim": 100,
}
"""Defaults of `model.zipformer.ZipVoiceArch`."""
ZIPVOICE_TOKENIZERS = {"emilia": "emilia", "libritts": "letters", "simple": "simple", "espeak": "espeak"}
"""Upstream's `--tokenizer` → the one here."""
MEL_KINDS: dict[str, Kind] = {"vocos": "vocos", "bigvgan": "bigvgan", "sbhifigan16k": "hifigan"}
PUBLISHED_RATES: dict[Kind, int] = {"vocos": 24_000, "bigvgan": 24_000, "hifigan": 16_000}
CALLED = {"ema": "averaged", "raw": "raw"}
OPTIONS = (
    *("--family", "--checkpoint", "--vocab", "--vocoder", "--vocoder-path"),
    *("--tokenizer", "--language", "--weights", "--licence", "--out"),
)
"""Options of `bundle` that a folder's content is the default of."""
FACTS = ("folder", "family", "tokenizer", "vocabulary", "language", "sample rate", "weights", "also there")
"""Order of what is printed."""
SHOWN_OTHERS = 4
LOG_BYTES = 1 << 16


@dataclass
class Found:
    """Content of a folder."""

    place: Path
    facts: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Options of `bundle`, in their order."""
    missing: dict[str, str] = field(default_factory=dict)
    """Option, or what is wrong, and what to do."""
    is_vocoder: bool = False

    def lines(self) -> Iterator[str]:
        width = max(map(len, self.facts), default=0)
        for name, fact in self.facts.items():
            yield f"{name + ':':{width + 1}s} {fact}"
        for name, remedy in self.missing.items():
            yield f"missing: {name}: {remedy}"

    def arguments(self, more: Sequence[str] = ()) -> list[str]:
        """Arguments of `python -m export`, with `more` typed ones."""
        return ["bundle", *(word for option in self.options.items() for word in option), *more]

    def command(self, more: Sequence[str] = ()) -> str:
        return "python -m export " + shlex.join(self.arguments(more))


def look(place: Path, given: Mapping[str, str] | None = None) -> Found:
    """Read a folder of a training, or a checkpoint with what lies beside it; `given` are options of `bundle`.

    Raises CheckpointError.
    """
    given = given or {}
    if not place.exists():
        raise CheckpointError(f"{place}: no such folder")
    folder = place if place.is_dir() else place.parent
    found = Found(place)
    if place.is_dir() and (kind := _vocoder_kind(folder)) and "--checkpoint" not in given:
        _look_at_vocoder(found, folder, kind)
        return found
    path = Path(given["--checkpoint"]) if "--checkpoint" in given else place
    header = read_header(path) if path.is_file() else _newest(folder)
    names = header.names
    if any(ZIPVOICE_MARK in name for name in names):
        read: Callable[[_Folder], None] = _look_at_zipvoice
    else:
        check_names(header.path, names, NO_DIT)
        read = _look_at_f5
        if not any(F5_MARK in name for name in names):
            have = some(list(names)) or "no weights"
            raise CheckpointError(f"{header.path}: neither F5-TTS nor ZipVoice; it has {have}")
    found.options |= {"--family": "NAME", "--checkpoint": str(header.path), "--vocab": "FILE"}
    found.facts |= {name: "" for name in FACTS}
    read(_Folder(found, folder, header, given))
    found.options["--out"] = "bundle"
    found.options = {name: value for name, value in found.options.items() if name not in given}
    found.missing = {name: remedy for name, remedy in found.missing.items() if name not in given}
    found.facts = {name: fact for name, fact in found.facts.items() if fact}
    return found


@dataclass
class _Folder:
    found: Found
    folder: Path
    header: Header
    given: Mapping[str, str]

    def say_weights(self, mark: str, default: str) -> None:
        """Add the file, its kinds of weights and their step; `default` is what upstream speaks from."""
        path, kinds = self.header.path, self.header.kinds(mark)
        how = "averaged over checkpoints, by its name" if "-avg-" in path.name else ""
        how = how or " and ".join(CALLED[kind] for kind in kinds)
        if len(kinds) == 2:
            taken = self.found.options["--weights"] = self.given.get("--weights", default)
            why = "" if "--weights" in self.given else ", as upstream's inference does"
            how += f"; {CALLED.get(taken, taken)} are taken{why}"
        progress = f", {self.header.progress}" if self.header.progress else ""
        self.found.facts["weights"] = f"{_sized(path)}: {how}{progress}"
        others = [one for one in _weights_in(self.folder) if one != path]
        if others:
            shown = ", ".join(map(_sized, others[:SHOWN_OTHERS]))
            more = f" and {len(others) - SHOWN_OTHERS} more" if len(others) > SHOWN_OTHERS else ""
            self.found.facts["also there"] = f"{shown}{more}; --checkpoint FILE takes another"

    def say_vocoder(self, kind: Kind, rate: int) -> None:
        found = self.found
        if kind != "vocos":
            found.options["--vocoder"] = kind
        if "--vocoder-path" in self.given:
            found.facts["vocoder"] = self.given["--vocoder-path"]
            return
        for place in _vocoders(self.folder, kind):
            theirs = _vocoder_rate(place, kind)
            if theirs in (None, rate):
                found.options["--vocoder-path"] = str(place)
                found.facts["vocoder"] = f"{place} ({kind})"
                return
        found.options["--vocoder-path"] = "FOLDER"
        vocoder = VOCODERS[kind]
        remedy = f"published is {vocoder.repository} ({', '.join(vocoder.files)}), which `fetch` brings too"
        if rate != PUBLISHED_RATES[kind]:
            remedy = "none of this rate is published: train one, and pass its folder"
        places = "in the folder, beside it, in weights/ or in the hub's cache"
        found.missing["--vocoder-path"] = f"no {kind} of {rate} Hz is {places}; {remedy}"

    def say_licence(self) -> None:
        terms = stated_by(self.header.path)
        base = [KNOWN[name] for path in self.folder.glob("pretrained_*") for name in _published(path)]
        if terms is not None:
            self.found.facts["licence"] = f"{terms.licence}, {terms.source}" + (
                f" ({terms.note})" if terms.note else ""
            )
        elif base:
            self.found.facts["licence"] = (
                f"not stated here; tuned from a file named as {base[0].source}'s, {base[0].licence}, whose "
                "terms hold: --licence TERMS states them"
            )
        else:
            self.found.facts["licence"] = "not stated here: --licence TERMS states it"

    def say_language(self, codes: str, how: str) -> None:
        if codes:
            self.found.options["--language"] = codes
        self.found.facts["language"] = (
            f"{codes}, {how}" if codes else "not known, --language CODE[,CODE] names it"
        )
        if "--language" in self.given:
            self.found.facts["language"] = self.given["--language"]


def _look_at_f5(at: _Folder) -> None:
    found, header = at.found, at.header
    embedding = header.named(F5_MARK)
    settings = _json(at.folder / "setting.json")
    found.facts["folder"] = f"{at.folder}: a training of F5-TTS"
    model = _say_f5_family(at, settings)
    _say_f5_text(at, model, settings, embedding.shape[0])
    mel_spec = _mapping(model, "mel_spec")
    mels = at.given.get("--vocoder") or mel_spec.get("mel_spec_type", "vocos")
    kind: Kind = "hifigan" if mels == "hifigan" else MEL_KINDS.get(str(mels), "vocos")
    rate = mel_spec.get("target_sample_rate", 16_000 if kind == "hifigan" else 24_000)
    found.facts["sample rate"] = f"{rate} Hz, mels of {kind}"
    at.say_weights(F5_MARK, "ema")
    at.say_vocoder(kind, rate)
    at.say_licence()


def _say_f5_family(at: _Folder, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say the family by a YAML file, the fine-tuning page's settings or a pretrained file's name, and return
    the section `model` of the first, empty without one.
    """
    found, names = at.found, at.header.names
    blocks = {part.group(1) for part in map(re.compile(r"transformer_blocks\.(\d+)\.").search, names) if part}
    size = at.header.named("proj_out.weight").shape[-1], len(blocks)
    sizes = f"{size[0]} × {size[1]}"
    family = at.given.get("--family", "")
    model: Mapping[str, Any] = {}
    models = {path: _mapping(_yaml(path), "model") for path in _yamls(at.folder)}
    if Path(family).suffix in (".yaml", ".yml"):
        models = {Path(family): _mapping(_yaml(Path(family)), "model")}
    elif family:
        models = {}
    models = {path: one for path, one in models.items() if _mapping(one, "arch")}
    based = {KNOWN[row].family for path in at.folder.glob("pretrained_*") for row in _published(path)}
    named = str(settings.get("exp_name", ""))
    if models:
        path, model = next(iter(models.items()))
        family, arch = str(path), _mapping(model, "arch")
        how = f"{model.get('name', path.stem)}, of {path}; {_flags(arch)}"
        if (arch.get("dim"), arch.get("depth", 8)) != size:
            found.missing["--family"] = f"{path} is of another width or depth than the weights, {sizes}"
        if any(one != model for one in models.values()):
            found.missing["--family"] = f"several YAML files differ: one of {', '.join(map(str, models))}"
    elif family:
        how = family
    elif named in FLAGS:
        family, how = named, f"{named}, as setting.json says; {FLAGS[named][2]}"
    elif len(based) == 1:
        (family,) = based
        how = f"{family}, by the name of the pretrained file; {FLAGS[family][2]}; `bundle` proves it"
    else:
        how = "not known"
        fit = " or ".join(f"{name} ({flags})" for name, (*of, flags) in FLAGS.items() if tuple(of) == size)
        found.missing["--family"] = (
            f"no YAML file, setting.json or pretrained_* says it, and no tensor: {fit or 'a YAML file'}; "
            "`bundle` proves which"
        )
    if family in FLAGS and FLAGS[family][:2] != size:
        found.missing["--family"] = f"{family} has another width or depth than the weights, {sizes}"
    found.options["--family"] = family or "NAME"
    if any(name.startswith(STUDENT) for name in names) and "{" not in family:
        renoising = {"update": "renoise", "guidance": "none", "steps": [4], "grid": "sway"}
        found.options["--family"] = _sampled(family or "NAME", renoising)
    found.facts["family"] = f"{how}; {sizes}"
    return model


def _sampled(family: str, sampler: Mapping[str, Any]) -> str:
    """A text for --family."""
    return json.dumps({"family": family, "sampler": sampler}, ensure_ascii=False)


def _say_f5_text(at: _Folder, model: Mapping[str, Any], settings: Mapping[str, Any], rows: int) -> None:
    found = at.found
    vocab, data = _vocab(at, model, settings, rows)
    tokenizer = str(model.get("tokenizer") or settings.get("tokenizer_type") or data or "")
    ours = {"pinyin": "pinyin", "custom": "pinyin", "char": "char", "phones": "phones"}.get(tokenizer, "")
    if tokenizer and not ours:
        found.missing["--tokenizer"] = f"upstream's {tokenizer} is not supported; pinyin, custom and char are"
    if ours not in ("", "pinyin"):
        found.options["--tokenizer"] = ours
    recorded = f"recorded as {tokenizer}" if tokenizer else "upstream's default, recorded nowhere"
    found.facts["tokenizer"] = f"{ours or 'pinyin'}, {recorded}"
    if vocab is not None:
        found.options["--vocab"] = str(vocab)
        found.facts["vocabulary"] = f"{vocab}, {rows - 1} tokens"
        at.say_language(",".join(guess(read_vocabulary(vocab))), "guessed from the vocabulary")
    else:
        at.say_language("", "")


def _vocab(
    at: _Folder, model: Mapping[str, Any], settings: Mapping[str, Any], rows: int
) -> tuple[Path | None, str]:
    """Vocabulary of `rows` tokens less one, and the tokenizer that its data's folder is named after."""
    named = [at.given.get("--vocab"), model.get("tokenizer_path"), settings.get("tokenizer_file")]
    places = [Path(str(one)) for one in named if one]
    places += [at.folder / "vocab.txt", *sorted(at.folder.glob("*vocab*.txt"))]
    # Upstream keeps data/NAME_TOKENIZER/vocab.txt beside ckpts/NAME.
    name = at.folder.absolute().name
    places += sorted(at.folder.absolute().parent.parent.glob(f"data/{name}*/vocab.txt"))
    sizes: dict[Path, int] = {}
    for path in places:
        if path.is_file() and path not in sizes:
            try:
                sizes[path] = read_vocabulary(path).size
            except BundleError as error:
                at.found.missing["--vocab"] = str(error)
    fit = [path for path, size in sizes.items() if size == rows - 1]
    if fit:
        at.found.missing.pop("--vocab", None)
        data = re.fullmatch(r".*_(pinyin|char|custom|byte)", fit[0].parent.name)
        return fit[0], data.group(1) if data else ""
    if "--vocab" not in at.found.missing:
        others = "; ".join(f"{path} has {size}" for path, size in sizes.items())
        at.found.missing["--vocab"] = (
            f"no vocab.txt with {rows - 1} tokens is there ({others or 'none at all'}); upstream keeps it in "
            "data/NAME_TOKENIZER/vocab.txt"
        )
    return None, ""


def _look_at_zipvoice(at: _Folder) -> None:
    found, header, folder = at.found, at.header, at.folder
    if any(re.search(r"(?:^|\.)spk_embed\.", name) for name in header.names):
        raise CheckpointError(f"{header.path}: is a ZipVoice-Dialog (two speakers), which is not supported")
    config = folder / "model.json"
    raw = _json(config)
    model, feature = _mapping(raw, "model"), _mapping(raw, "feature")
    distilled = any(GUIDANCE in name for name in header.names)
    upstream, voice, where = _zipvoice_reading(at)
    has_pinyin, tokens = _tokens(at)
    tokenizer = ZIPVOICE_TOKENIZERS.get(upstream, "")
    if tokenizer == "espeak":
        tokenizer = f"espeak:{voice}"
    if "--tokenizer" in at.given:
        tokenizer, where = at.given["--tokenizer"], "as given"
    rate = feature.get("sampling_rate", 24_000)
    published = all(model.get(key) == value for key, value in PUBLISHED_ZIPVOICE.items()) and rate == 24_000
    # Samplers differ by the data: published sizes go by the makers' name, which knows its grid.
    base = {"emilia": "ZipVoice", "espeak": "ZipVoice", "letters": "ZipVoice-LibriTTS"}
    name = base.get(tokenizer.split(":")[0]) if published else None
    if name:
        found.options["--family"] = f"{name}-Distill" if distilled else name
    else:
        found.options["--family"] = str(config)
        if distilled:
            found.options["--family"] = _sampled(str(config), {"guidance": "embedded"})
    if not model and "--family" not in at.given:
        found.options["--family"] = "ZipVoice-Distill" if distilled else "ZipVoice"
        found.missing["--family"] = f"{config} is not there or has no section model"
    found.facts["folder"] = f"{folder}: a training of ZipVoice"
    found.facts["family"] = (
        f"ZipVoice{'-Distill, whose guidance is embedded' if distilled else ', guided by two rows'}; "
        f"{'published sizes' if published else 'sizes of ' + str(config)}"
    )
    if tokenizer:
        found.options["--tokenizer"] = tokenizer
        found.facts["tokenizer"] = f"{tokenizer}, {where}"
    else:
        found.options["--tokenizer"] = "TOKENIZER"
        kinds = (
            "emilia for English and Chinese, espeak:LANG (espeak:de, …) for another language"
            if has_pinyin
            else "letters for LibriTTS's (upstream's libritts), simple for characters as they are"
        )
        found.facts["tokenizer"] = (
            "not known: model.json does not record it, and no training checkpoint is there"
        )
        found.missing["--tokenizer"] = f"{kinds}: what was given to upstream's --tokenizer"
    languages = {"emilia": "en,zh", "letters": "en"}.get(tokenizer, "")
    if tokenizer.startswith("espeak:"):
        languages = {"cmn": "zh"}.get(code := re.split(r"[-_]", tokenizer[7:])[0], code)
        at.say_language(languages, "of espeak's voice")
    else:
        at.say_language(languages, "of the tokenizer")
    if tokenizer == "simple" and (codes := ",".join(guess(_letters(tokens)))):
        at.say_language(codes, "guessed from the tokens")
    found.facts["sample rate"] = f"{rate} Hz, mels of vocos ({config.name})"
    at.say_weights(EMBED, "raw")
    if "-avg-" not in header.path.name and len(_training(folder)) > 1:
        found.facts["average"] = "upstream's recipes speak from one, which its generate_averaged_model makes"
    at.say_vocoder("vocos", rate)
    at.say_licence()


def _training(folder: Path) -> list[Path]:
    """ZipVoice's checkpoints that hold its settings, the newest first."""
    paths = [path for pattern in ("checkpoint-*.pt", "epoch-*.pt") for path in folder.glob(pattern)]
    return sorted((path for path in paths if "-avg-" not in path.name), key=numbers, reverse=True)


def _zipvoice_reading(at: _Folder) -> tuple[str, str, str]:
    """Upstream's tokenizer, its language, and where they are recorded; "" where they are not."""
    settings, path = at.header.settings, at.header.path
    if "tokenizer" not in settings:
        for path in _training(at.folder):
            settings = read_header(path).settings
            break
    if isinstance(name := settings.get("tokenizer"), str):
        return name, str(settings.get("lang", "")), f"recorded in {path.name}"
    for log in sorted(at.folder.glob("log/log-train*"), reverse=True):
        with log.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(LOG_BYTES)
        if found := re.search(r'"tokenizer": "(\w+)"', text):
            lang = re.search(r'"lang": "([\w-]+)"', text)
            return found.group(1), lang.group(1) if lang else "", f"recorded in {log.name}"
    return "", "", ""


def _tokens(at: _Folder) -> tuple[bool, tuple[str, ...]]:
    """True if `tokens.txt` has pinyin, and its tokens."""
    path = Path(at.given.get("--vocab", at.folder / "tokens.txt"))
    rows = at.header.named(EMBED).shape[0]
    at.found.options["--vocab"] = str(path)
    try:
        tokens = tuple(line.rpartition("\t")[0] for line in path.read_text("utf-8").split("\n") if line)
    except (OSError, UnicodeDecodeError):
        at.found.missing["--vocab"] = f"{path} is not there: the training's --token-file"
        return False, ()
    at.found.facts["vocabulary"] = f"{path}, {len(tokens)} tokens"
    if len(tokens) != rows:
        at.found.missing["--vocab"] = f"{path} has {len(tokens)} tokens, the weights {rows}"
    return "zh0" in tokens, tokens


def _letters(tokens: Sequence[str]) -> Vocabulary:
    return Vocabulary((" ", *(token for token in tokens if token != " ")), "char")


def _look_at_vocoder(found: Found, folder: Path, kind: Kind) -> None:
    rate = _vocoder_rate(folder, kind)
    names = {"vocos": "Vocos", "bigvgan": "BigVGAN", "hifigan": "HiFi-GAN"}
    found.is_vocoder = True
    found.facts["folder"] = f"{folder}: a {names[kind]}, a vocoder"
    found.facts["sample rate"] = f"{rate} Hz" if rate else "not recorded"
    path = vocoder_file(folder, kind)
    header = read_header(path)
    number = numbers(path) if re.fullmatch(r"g_\d+(\.\w+)?", path.name) else ()
    progress = header.progress or (f"update {number[0]}" if number else "")
    mark = "backbone.embed." if kind == "vocos" else "conv_pre."
    kinds = " and ".join(CALLED[one] for one in header.kinds(mark))
    found.facts["weights"] = (
        f"{_sized(path)}: {kinds or 'no ' + names[kind]}{', ' + progress if progress else ''}"
    )
    if not kinds:
        found.missing["weights"] = f"{path} holds none of a {names[kind]}"
    found.facts["to use it"] = (
        f"--vocoder {kind} --vocoder-path {shlex.quote(str(folder))}, in `bundle` of a voice"
    )


def _vocoder_kind(folder: Path) -> Kind | None:
    """Vocoder whose configuration a folder has."""
    if {"feature_extractor", "backbone", "head"} <= _sections(folder).keys():
        return "vocos"
    raw = _json(folder / "config.json")
    if "upsample_rates" not in raw:
        return None
    return "bigvgan" if "snake_logscale" in raw or "activation" in raw else "hifigan"


def _sections(folder: Path) -> Mapping[str, Any]:
    """Sections of Vocos' `config.yaml`, published or of a training."""
    config = _yaml(config_beside(folder / "config.yaml", "config.yaml"))
    return _mapping(_mapping(config, "model"), "init_args") or config


def _vocoder_rate(folder: Path, kind: Kind) -> int | None:
    """Samples a second of a vocoder's configuration; None if it has none."""
    if kind != "vocos":
        rate = _json(folder / "config.json").get("sampling_rate")
    else:
        extractor = _mapping(_mapping(_sections(folder), "feature_extractor"), "init_args")
        rate = extractor.get("sample_rate", 24_000)
    return rate if isinstance(rate, int) else None


def _vocoders(folder: Path, kind: Kind) -> Iterator[Path]:
    """Folders with a vocoder: in the training's, beside it, in those of `fetch`, in the hub's cache, where
    upstream's inference has it."""
    home = Path(os.environ.get("HF_HOME", Path("~/.cache/huggingface").expanduser()))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    owner, name = VOCODERS[kind].repository.split("/")
    around = (folder, folder.parent if folder.name else folder / "..")
    places = [
        *(path for where in around for path in sorted(where.glob("*")) if path.is_dir()),
        Path("weights") / name,
        *sorted(cache.glob(f"models--{owner}--{name}/snapshots/*")),
    ]
    for place in places:
        published = place.name == name and kind == "hifigan"
        files = (*VOCODER_FILES[kind], *TRAINED_VOCODERS[kind])
        if (published or _vocoder_kind(place) == kind) and newest(place, files) is not None:
            yield place


def _newest(folder: Path) -> Header:
    """Header of the file that `CHECKPOINTS` puts first. Raises CheckpointError."""
    trained = _weights_in(folder)
    for pattern in CHECKPOINTS:
        if not (found := [path for path in folder.glob(pattern) if path in trained]):
            continue
        header = read_header(max(found, key=numbers))
        later, update = newest(folder, ["model_*[0-9].pt"]), header.settings.get("update")
        if header.path.name != "model_last.pt" or later is None or not isinstance(update, int):
            return header
        return read_header(later) if numbers(later)[-1] > update else header
    started = ", ".join(path.name for path in sorted(folder.glob("pretrained_*")))
    raise CheckpointError(
        f"{folder}: has no checkpoint of a training"
        + (
            f", only what it started from ({started})"
            if started
            else "; known are those of F5-TTS, ZipVoice, "
        )
        + ("" if started else "Vocos, BigVGAN and HiFi-GAN")
    )


def _weights_in(folder: Path) -> list[Path]:
    suffixes = (".pt", ".safetensors", ".ckpt", ".pth", ".bin", ".gguf", ".npz")
    found = [path for path in folder.iterdir() if path.suffix in suffixes and path.is_file()]
    return sorted((path for path in found if not NOT_TRAINED.match(path.name)), key=numbers, reverse=True)


def _yamls(folder: Path) -> list[Path]:
    """YAML files of a training, hydra's too, the newest first."""
    patterns = ("*.yaml", "*.yml", ".hydra/config.yaml", "*/*/.hydra/config.yaml")
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.name != "licence.yaml"}
    return sorted(found, key=lambda path: (-path.stat().st_mtime_ns, str(path)))


def _published(path: Path) -> list[str]:
    """Rows of known weights whose file a `pretrained_` one is named after."""
    name = path.name.removeprefix("pretrained_")
    return [row.name for row in KNOWN.values() if row.checkpoint.endswith(f"/{name}") and row.family in FLAGS]


def _flags(arch: Mapping[str, Any]) -> str:
    heads, masks = arch.get("pe_attn_head"), arch.get("text_mask_padding", True)
    upsamples = arch.get("text_embedding_average_upsampling", False)
    told = f"pe_attn_head: {'null' if heads is None else heads}, text_mask_padding: {str(masks).lower()}"
    return told + (", text_embedding_average_upsampling: true" if upsamples else "")


def _sized(path: Path) -> str:
    megabytes = path.stat().st_size / 1e6
    return f"{path.name} ({megabytes:,.{1 if megabytes < 10 else 0}f} MB)"


def _json(path: Path) -> Mapping[str, Any]:
    """Mapping of a file; empty if there is none."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, Mapping) else {}


def _yaml(path: Path) -> Mapping[str, Any]:
    """Mapping of a file; empty if there is none."""
    try:
        raw = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return raw if isinstance(raw, Mapping) else {}


def _mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def is_training(place: Path) -> bool:
    """True for a checkpoint, or a folder with one that is no bundle."""
    if not place.is_dir():
        return place.is_file()
    weights = bool(_weights_in(place)) or _vocoder_kind(place) is not None
    return weights and not (place / MANIFEST).is_file()


def describe(place: Path, given: Mapping[str, str] | None = None) -> str:
    """Facts about a folder, what is missing, and the command. Raises CheckpointError."""
    found = look(place, given)
    more = [word for option in (given or {}).items() for word in option]
    return "\n".join([*found.lines()] if found.is_vocoder else [*found.lines(), "", found.command(more)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a training, or a checkpoint in it")
    for option in OPTIONS:
        parser.add_argument(option, help="as of `bundle`")


def given(arguments: argparse.Namespace) -> dict[str, str]:
    """Options of a command line that a folder would else be searched for."""
    found = {option: getattr(arguments, option[2:].replace("-", "_"), None) for option in OPTIONS}
    return {option: str(value) for option, value in found.items() if value is not None}


def main(argv: Sequence[str]) -> int:
    """Run `look`; print an expected failure as one line on standard error and return 1."""
    parser = argparse.ArgumentParser(prog="python -m export look")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    try:
        print(describe(arguments.folder, given(arguments)))
    except (CheckpointError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    return 0
