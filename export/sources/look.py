"""Finds out what a training's folder contains, and prints the `bundle` command for it.

Reads no tensor and does not import torch. Supported are the layouts of f5-tts 1.1.22 (`trainer.py`,
`finetune_cli.py`, `finetune_gradio.py`, hydra's folders), k2-fsa/ZipVoice at 2f7326f, Vocos' LightningCLI and
BigVGAN's `train.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.bundle import MANIFEST
from appliance.contract.mel import Kind
from appliance.contract.tokens import Vocabulary
from appliance.errors import BundleError
from export.model.arch import F5TTS, ZipVoiceArch, flags_of
from export.sources import adapter, espnet, shards
from export.sources.header import (
    NO_DIT,
    STUDENT,
    TRAINED_VOCODERS,
    VOCODER_FILES,
    CheckpointError,
    Header,
    check_names,
    config_beside,
    folder_of,
    newest,
    numbers,
    read_header,
    section,
    shards_of,
    some,
    vocoder_file,
)
from export.sources.licence import stated_by
from export.sources.reading import guess, numbered
from export.sources.weights import KNOWN, VOCODERS, Known

F5_MARK = "text_embed.text_embed.weight"
ZIPVOICE_MARK = "fm_decoder."
EMBED = "embed.weight"
GUIDANCE = "guidance_scale_embed"
CHECKPOINTS = (
    shards.INDEX,
    *("iter-*-avg-*.pt", "epoch-*-avg-*.pt"),
    *("model_last.pt", "model_last.safetensors", "model_*[0-9].pt", "model_*[0-9].safetensors"),
    *("checkpoint-*[0-9].pt", "epoch-*[0-9].pt", "best-valid-loss.pt", "best-train-loss.pt"),
    *("model.safetensors", "model.pt", "last*.ckpt", "*.safetensors", "*.ckpt", "*.pt"),
    *("*.gguf", "*.npz"),
)
"""Files to export, the best first: ZipVoice's averages, because its recipes use them, then the newest."""
SUFFIXES = (".pt", ".safetensors", ".ckpt", ".pth", ".bin", ".gguf", ".npz")
NOT_TRAINED = re.compile(r"pretrained_|bad-model|batch-|optimizer|random_states|scheduler|adapter_model")
"""Matches the beginning of a file's name: files that the training started from, and its state."""
YAMLS = ("*.yaml", "*.yml", ".hydra/config.yaml", "*/*/.hydra/config.yaml", "conf/*.yaml")
F5_TOKENIZERS = {"": "pinyin", "pinyin": "pinyin", "custom": "pinyin", "char": "char", "phones": "phones"}
"""Upstream's tokenizer in a YAML file or in settings → ours."""
ZIPVOICE_TOKENIZERS = {"emilia": "emilia", "libritts": "letters", "simple": "simple", "espeak": "espeak"}
"""Upstream's `--tokenizer` → ours."""
ZIPVOICES = {"emilia": "ZipVoice", "letters": "ZipVoice-LibriTTS", "espeak": "ZipVoice"}
"""Our tokenizer → the family with the published sizes and grid of steps."""
READ = {"emilia": "en,zh", "letters": "en"}
"""Our tokenizer → ISO 639-1 codes of its languages."""
VOCODER_MARKS = {"vocos": ("Vocos", "backbone.embed."), "bigvgan": ("BigVGAN", "conv_pre.")}
"""The vocoder's name, and the beginning of a tensor's name that only this vocoder has."""
RATE_HZ = 24_000
"""Sample rate of all published vocoders, and upstream's default."""
CALLED = {"ema": "averaged", "raw": "raw"}
OPTIONS = (
    *("--family", "--checkpoint", "--adapter", "--vocab", "--vocoder", "--vocoder-path"),
    *("--tokenizer", "--language", "--weights", "--licence", "--out"),
)
"""Options of `bundle` that take their defaults from a folder's content."""
IN_LOG, LOG_BYTES = re.compile(r'"(tokenizer|lang)": "([\w-]+)"'), 1 << 16
"""The settings in ZipVoice's log, and how much of the log is searched for them."""


@dataclass
class FolderContent:
    """Content of a folder, and options that `bundle` still needs."""

    folder: Path
    header: Header
    user_options: Mapping[str, str] = field(default_factory=dict)
    """Options of `bundle` from the command line."""
    facts: dict[str, str] = field(default_factory=dict)
    """Name → value, as printed."""
    options: dict[str, str] = field(default_factory=dict)
    """Options for the `bundle` command, in its order."""
    missing: dict[str, str] = field(default_factory=dict)
    """Option or problem → what to do about it."""
    is_vocoder: bool = False

    def lines(self) -> Iterator[str]:
        width = max(map(len, self.facts))
        for name, fact in self.facts.items():
            yield f"{name + ':':{width + 1}s} {fact}"
        for name, remedy in self.missing.items():
            yield f"missing: {name}: {remedy}"

    def arguments(self, more: Sequence[str] = ()) -> list[str]:
        """Arguments of `python -m export`, followed by the arguments `more`."""
        return ["bundle", *(word for option in self.options.items() for word in option), *more]

    def command(self, more: Sequence[str] = ()) -> str:
        return "python -m export " + shlex.join(self.arguments(more))

    def say_weights(self, mark: str, default: str) -> None:
        """Add the file, its kinds of weights and their progress.

        `default` is the kind that upstream's inference uses.
        """
        path, kinds = self.header.path, self.header.kinds(mark)
        how = " and ".join(CALLED[kind] for kind in kinds)
        if "-avg-" in path.name:
            how = "averaged over checkpoints, by its name"
        if len(kinds) == 2:
            weights = self.options["--weights"] = self.user_options.get("--weights", default)
            why = "" if "--weights" in self.user_options else ", as upstream's inference does"
            how += f"; {CALLED.get(weights, weights)} are used{why}"
        self.facts["weights"] = _weights(path, how, self.header.progress)
        if others := [_sized(one) for one in _weights_in(self.folder) if one != path]:
            self.facts["also there"] = f"{some(others)}; --checkpoint FILE selects another"

    def say_vocoder(self, kind: Kind, rate: int) -> None:
        """Add the user's vocoder, or else the first folder with a vocoder of this kind and rate."""
        if kind != "vocos":
            self.options["--vocoder"] = kind
        if "--vocoder-path" in self.user_options:
            self.facts["vocoder"] = self.user_options["--vocoder-path"]
            return
        fit = [place for place in _vocoders(self.folder, kind) if _rate(place, kind) in (None, rate)]
        self.options["--vocoder-path"] = str(fit[0]) if fit else "FOLDER"
        if fit:
            self.facts["vocoder"] = f"{fit[0]} ({kind})"
            return
        vocoder = VOCODERS[kind]
        remedy = f"{vocoder.repository} is published ({', '.join(vocoder.files)}); `fetch` downloads it too"
        if rate != RATE_HZ:
            remedy = "no vocoder of this rate is published: train one, and pass its folder"
        places = "in the folder, next to it, in weights/ or in the hub's cache"
        self.missing["--vocoder-path"] = f"found no {kind} of {rate} Hz {places}; {remedy}"

    def say_licence(self) -> None:
        terms, base = stated_by(self.header.path), _bases(self.folder)
        licence = "no file states it: pass --licence TERMS"
        if terms is not None:
            licence = f"{terms.licence}, {terms.source}" + (f" ({terms.note})" if terms.note else "")
        elif base:
            licence = (
                f"no file states it; tuned from a file named as {base[0].source}'s, {base[0].licence}, whose "
                "terms hold: pass --licence TERMS"
            )
        self.facts["licence"] = licence

    def say_language(self, codes: str, how: str) -> None:
        if codes:
            self.options["--language"] = codes
        language = f"{codes}, {how}" if codes else "unknown: pass --language CODE[,CODE]"
        self.facts["language"] = self.user_options.get("--language", language)


def look(place: Path, user_options: Mapping[str, str] | None = None) -> FolderContent:
    """Find the content of a training's folder, or the files next to a checkpoint.

    `user_options` are options of `bundle` from the command line. Raises CheckpointError.
    """
    user_options = user_options or {}
    if not place.exists():
        raise CheckpointError(f"{place}: no such folder")
    folder = place if place.is_dir() else place.parent
    if place.is_dir() and (kind := _vocoder_kind(folder)) and "--checkpoint" not in user_options:
        return _look_at_vocoder(folder, kind)
    path, merges = Path(user_options.get("--checkpoint", place)), _adapter(place, user_options)
    if merges is not None and merges.folder == place and not _weights_in(place):
        folder = place.absolute().parent
    header = read_header(path) if path.is_file() else _base(folder, merges) if merges else _newest(folder)
    if merges is not None:
        own = {key: adapter.of_base(names).items() for key, names in header.dicts.items()}
        dicts = {key: {new: header.dicts[key][old] for new, old in pairs} for key, pairs in own.items()}
        header = replace(header, dicts=dicts)
    content = FolderContent(folder, header, user_options)
    content.options = {"--family": "NAME", "--checkpoint": str(header.path)}
    if merges is not None:
        content.options["--adapter"] = str(merges.folder)
        content.facts["adapter"] = f"{merges}, merged into {header.path}"
    content.options["--vocab"] = "FILE"
    if any(ZIPVOICE_MARK in name for name in header.names):
        _look_at_zipvoice(content)
    else:
        check_names(header.path, header.names, NO_DIT)
        if not any(F5_MARK in name for name in header.names):
            have = some(list(header.names)) or "no weights"
            raise CheckpointError(f"{header.path}: neither F5-TTS nor ZipVoice; it has {have}")
        _look_at_f5(content)
    content.say_licence()
    content.options["--out"] = "bundle"
    for name in user_options:
        content.options.pop(name, None)
        content.missing.pop(name, None)
    return content


def _look_at_f5(content: FolderContent) -> None:
    """Add the facts about a training of F5-TTS."""
    settings = _read(content.folder / "setting.json")
    content.facts["folder"] = f"{content.folder}: a training of F5-TTS"
    model = _say_f5_family(content, settings)
    _say_f5_text(content, model, settings)
    mel_spec = section(model, "mel_spec")
    mels = content.user_options.get("--vocoder") or mel_spec.get("mel_spec_type", "vocos")
    kind: Kind = "bigvgan" if mels == "bigvgan" else "vocos"
    if kind != mels:
        content.missing["--vocoder"] = f"mels of {mels} are not supported; supported: {', '.join(VOCODERS)}"
    rate = mel_spec.get("target_sample_rate", RATE_HZ)
    content.facts["sample rate"] = f"{rate} Hz, mels of {mels}"
    content.say_weights(F5_MARK, "ema")
    content.say_vocoder(kind, rate)


def _say_f5_family(content: FolderContent, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the family, and return the section `model` of the YAML file ({} without one).

    A YAML file, the settings of the fine-tuning page or the name of a file `pretrained_*` tells the family.
    """
    blocks = set(re.findall(r"transformer_blocks\.(\d+)\.", " ".join(content.header.names)))
    size = content.header.named("proj_out.weight").shape[-1], len(blocks)
    sizes = f"{size[0]} × {size[1]}"
    family, named = content.user_options.get("--family", ""), str(settings.get("exp_name", ""))
    paths = [Path(family)] if family.endswith((".yaml", ".yml")) else [] if family else _yamls(content.folder)
    sections = {path: section(espnet.upstreams(_read(path)), "model") for path in paths}
    models = {path: one for path, one in sections.items() if section(one, "arch")}
    based = {row.family for row in _bases(content.folder)}
    sizes_of = {name: (arch.dim, arch.depth, flags_of(vars(arch))) for name, arch in F5TTS.items()}
    model: Mapping[str, Any] = {}
    if models:
        path, model = next(iter(models.items()))
        family, arch = str(path), section(model, "arch")
        how = f"{model.get('name', path.stem)}, of {path}; {flags_of(arch)}"
        if (arch.get("dim"), arch.get("depth", 8)) != size:
            content.missing["--family"] = f"{path} does not have the weights' width and depth, {sizes}"
        if any({**one, "tokenizer_path": ""} != {**model, "tokenizer_path": ""} for one in models.values()):
            content.missing["--family"] = f"several YAML files differ: pass {',  '.join(map(str, models))}"
    elif family:
        how = family
    elif named in sizes_of:
        family, how = named, f"{named}, from setting.json; {sizes_of[named][2]}"
    elif len(based) == 1:
        (family,) = based
        how = f"{family}, from the name of the pretrained file; {sizes_of[family][2]}; `bundle` proves it"
    else:
        how = "not known"
        fit = " or ".join(f"{name} ({flags})" for name, (*of, flags) in sizes_of.items() if tuple(of) == size)
        content.missing["--family"] = (
            f"no YAML file, setting.json, pretrained_* or tensor determines it:  {fit or 'a YAML file'}; "
            "`bundle` proves which"
        )
    if family in sizes_of and sizes_of[family][:2] != size:
        content.missing["--family"] = f"{family} does not have the weights' width and depth, {sizes}"
    if any(name.startswith(STUDENT) for name in content.header.names) and "{" not in family:
        family = _sampled(family or "NAME", update="renoise", guidance="none", steps=[4], grid="sway")
    content.options["--family"] = family or "NAME"
    content.facts["family"] = f"{how}; {sizes}"
    return model


def _sampled(family: str, **sampler: object) -> str:
    """A family with a sampler, as a value of --family."""
    return json.dumps({"family": family, "sampler": sampler}, ensure_ascii=False)


def _say_f5_text(content: FolderContent, model: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    vocab = _vocab(content, [model.get("tokenizer_path"), settings.get("tokenizer_file")])
    data = re.fullmatch(r".*_(pinyin|char|custom|byte)", vocab.parent.name if vocab else "")
    tokenizer = str(model.get("tokenizer") or settings.get("tokenizer_type") or (data[1] if data else ""))
    if tokenizer not in F5_TOKENIZERS:
        content.missing["--tokenizer"] = (
            f"upstream's {tokenizer} is not supported; pass pinyin, custom or char"
        )
    ours = F5_TOKENIZERS.get(tokenizer, "pinyin")
    if ours != "pinyin":
        content.options["--tokenizer"] = ours
    recorded = f"recorded as {tokenizer}" if tokenizer else "upstream's default, because no file records it"
    content.facts["tokenizer"] = f"{ours}, {recorded}"
    codes = guess(espnet.vocabulary(vocab)) if vocab else ()
    content.say_language(",".join(codes), "guessed from the vocabulary")


def _vocab(content: FolderContent, named: Sequence[object]) -> Path | None:
    """Add and return the vocabulary.

    It must have one token less than the embedding has rows: one row is the filler's.
    """
    rows, folder = content.header.named(F5_MARK).shape[0] - 1, content.folder.absolute()
    places = [Path(str(one)) for one in (content.user_options.get("--vocab"), *named) if one]
    places += [where / one for one in places for where in (folder, folder.parent.parent)]
    places += [content.folder / "vocab.txt", *sorted(content.folder.glob("*vocab*.txt"))]
    # Upstream stores ckpts/NAME and data/NAME_TOKENIZER/vocab.txt in one folder.
    places += sorted(folder.parent.parent.glob(f"data/{folder.name}*/vocab.txt"))
    others = []
    for path in dict.fromkeys(path for path in places if path.is_file()):
        try:
            if (size := espnet.vocabulary(path).size) == rows:
                content.missing.pop("--vocab", None)
                content.options["--vocab"] = str(path)
                content.facts["vocabulary"] = f"{path}, {rows} tokens, order not proved: `bundle` measures it"
                return path
            others.append(f"{path} has {size}")
        except BundleError as error:
            content.missing["--vocab"] = str(error)
    content.missing.setdefault(
        "--vocab",
        f"no vocab.txt with {rows} tokens exists ({'; '.join(others) or 'none at all'}); upstream stores "
        "it in data/NAME_TOKENIZER/vocab.txt",
    )
    return None


def _look_at_zipvoice(content: FolderContent) -> None:
    """Add the facts about a training of ZipVoice."""
    header, config = content.header, content.folder / "model.json"
    if any(re.search(r"(?:^|\.)spk_embed\.", name) for name in header.names):
        raise CheckpointError(f"{header.path}: is a ZipVoice-Dialog (two speakers), which is not supported")
    model = section(_read(config), "model")
    rate = section(_read(config), "feature").get("sampling_rate", RATE_HZ)
    distilled = any(GUIDANCE in name for name in header.names)
    sizes = {key: list(n) if isinstance(n, tuple) else n for key, n in vars(ZipVoiceArch()).items()}
    published = all(model.get(key) == size for key, size in sizes.items()) and rate == RATE_HZ
    tokenizer, where = _zipvoice_tokenizer(content)
    reads, _, voice = tokenizer.partition(":")
    content.options["--family"] = str(config)
    if not model and "--family" not in content.user_options:
        content.options["--family"] = "ZipVoice" + "-Distill" * distilled
        content.missing["--family"] = f"{config} is missing or has no section model"
    elif published and reads in ZIPVOICES:
        content.options["--family"] = ZIPVOICES[reads] + "-Distill" * distilled
    elif distilled:
        content.options["--family"] = _sampled(str(config), guidance="embedded")
    guided = "-Distill, whose guidance is embedded" if distilled else ", guided by two rows"
    content.facts["folder"] = f"{content.folder}: a training of ZipVoice"
    content.facts["family"] = f"ZipVoice{guided}; {'published sizes' if published else f'sizes of {config}'}"
    content.options["--tokenizer"] = tokenizer or "TOKENIZER"
    unknown = "unknown: model.json does not record it, and the folder has no training checkpoint"
    content.facts["tokenizer"] = f"{tokenizer}, {where}" if tokenizer else unknown
    tokens = _tokens(content)
    if not tokenizer:
        kinds = "letters for LibriTTS's (upstream's libritts), simple for characters as they are"
        if "zh0" in tokens:
            kinds = "emilia for English and Chinese, espeak:LANG (espeak:de, …) for another language"
        content.missing["--tokenizer"] = f"{kinds}: the value of upstream's --tokenizer"
    codes, how = READ.get(reads, ""), "of the tokenizer"
    if reads == "espeak":
        codes, how = re.split(r"[-_]", voice)[0].replace("cmn", "zh"), "of espeak's voice"
    elif reads == "simple":
        letters = Vocabulary((" ", *(token for token in tokens if token != " ")), "char")
        codes, how = ",".join(guess(letters)), "guessed from the tokens"
    content.say_language(codes, how)
    content.facts["sample rate"] = f"{rate} Hz, mels of vocos ({config.name})"
    content.say_weights(EMBED, "raw")
    if "-avg-" not in header.path.name and len(_training(content.folder)) > 1:
        content.facts["average"] = "upstream's recipes speak from an average, by its generate_averaged_model"
    content.say_vocoder("vocos", rate)


def _training(folder: Path) -> list[Path]:
    """ZipVoice's checkpoints that contain their training's settings, the newest first."""
    paths = [path for pattern in ("checkpoint-*.pt", "epoch-*.pt") for path in folder.glob(pattern)]
    return sorted((path for path in paths if "-avg-" not in path.name), key=numbers, reverse=True)


def _zipvoice_tokenizer(content: FolderContent) -> tuple[str, str]:
    """Our name of the tokenizer, with espeak's language ("" if unknown), and the file that records it."""
    if "--tokenizer" in content.user_options:
        return content.user_options["--tokenizer"], "as given"
    header, others = content.header, _training(content.folder)
    if "tokenizer" not in header.settings and others:
        header = read_header(others[0])
    place, recorded = header.path, header.settings
    for log in sorted(content.folder.glob("log/log-train*"), reverse=True):
        if "tokenizer" in recorded:
            break
        with log.open(encoding="utf-8", errors="replace") as stream:
            place, recorded = log, dict(IN_LOG.findall(stream.read(LOG_BYTES)))
    tokenizer = ZIPVOICE_TOKENIZERS.get(str(recorded.get("tokenizer")), "")
    if tokenizer == "espeak":
        tokenizer = f"espeak:{recorded.get('lang', '')}"
    return tokenizer, f"recorded in {place.name}"


def _tokens(content: FolderContent) -> Sequence[str]:
    """Add and return the tokens of `tokens.txt`."""
    path = Path(content.user_options.get("--vocab", content.folder / "tokens.txt"))
    rows = content.header.named(EMBED).shape[0]
    content.options["--vocab"] = str(path)
    try:
        tokens = list(numbered(path))
    except BundleError as error:
        content.missing["--vocab"] = f"{error}; pass the training's --token-file"
        return []
    content.facts["vocabulary"] = f"{path}, {len(tokens)} tokens"
    if len(tokens) != rows:
        content.missing["--vocab"] = f"{path} has {len(tokens)} tokens, the weights {rows}"
    return tokens


def _look_at_vocoder(folder: Path, kind: Kind) -> FolderContent:
    """The content of a vocoder's folder."""
    header, rate = read_header(vocoder_file(folder, kind)), _rate(folder, kind)
    name, mark = VOCODER_MARKS[kind]
    kinds = " and ".join(CALLED[one] for one in header.kinds(mark))
    number = re.fullmatch(r"g_(\d+)(\.\w+)?", header.path.name)
    progress = header.progress or (f"update {int(number[1])}" if number else "")
    facts = {
        "folder": f"{folder}: a {name}, a vocoder",
        "sample rate": f"{rate} Hz" if rate else "not recorded",
        "weights": _weights(header.path, kinds or f"no {name}", progress),
        "to use it": f"--vocoder {kind} --vocoder-path {shlex.quote(str(folder))}, in `bundle` of a voice",
    }
    missing = {} if kinds else {"weights": f"{header.path} has no weights of a {name}"}
    return FolderContent(folder, header, facts=facts, missing=missing, is_vocoder=True)


def _vocoder_kind(folder: Path) -> Kind | None:
    """The vocoder that the configuration in a folder belongs to; None if there is none."""
    if {"feature_extractor", "backbone", "head"} <= _sections(folder).keys():
        return "vocos"
    return "bigvgan" if {"upsample_rates", "activation"} <= _read(folder / "config.json").keys() else None


def _sections(folder: Path) -> Mapping[str, Any]:
    """Sections of Vocos' `config.yaml`, of a published model or of a training."""
    config = _read(config_beside(folder / "config.yaml", "config.yaml"))
    return section(config, "model", "init_args") or config


def _rate(folder: Path, kind: Kind) -> int | None:
    """Sample rate in a vocoder's configuration; None if it has none."""
    rate = _read(folder / "config.json").get("sampling_rate")
    if kind == "vocos":
        extractor = section(_sections(folder), "feature_extractor", "init_args")
        rate = extractor.get("sample_rate", RATE_HZ)
    return rate if isinstance(rate, int) else None


def _vocoders(folder: Path, kind: Kind) -> Iterator[Path]:
    """Folders with a vocoder: in the training's folder, next to it, in `weights/`, in the hub's cache."""
    home = Path(os.environ.get("HF_HOME", Path("~/.cache/huggingface").expanduser()))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    owner, name = VOCODERS[kind].repository.split("/")
    around = (folder, folder.parent if folder.name else folder / "..")
    places = [
        *(path for where in around for path in sorted(where.glob("*")) if path.is_dir()),
        Path("weights") / name,
        *sorted(cache.glob(f"models--{owner}--{name}/snapshots/*")),
    ]
    files = (*VOCODER_FILES[kind], *TRAINED_VOCODERS[kind])
    yield from (place for place in places if _vocoder_kind(place) == kind and newest(place, files))


def _adapter(place: Path, user_options: Mapping[str, str]) -> adapter.Adapter | None:
    """The adapter of `--adapter`; else `place`, if it is one; else the adapter of the last update."""
    folder = adapter.newest_in(place)
    if "--checkpoint" in user_options and folder != place:
        folder = None
    if "--adapter" in user_options:
        folder = Path(user_options["--adapter"])
    return adapter.read(folder) if folder else None


def _base(folder: Path, merges: adapter.Adapter) -> Header:
    """Header of the weights that an adapter was trained on. Raises CheckpointError."""
    place = merges.folder.absolute()
    beside = folder.absolute() in (place, place.parent)
    started = [path for path in folder.glob("pretrained_*") if beside and path.suffix in SUFFIXES]
    paths = (Path(merges.config.base_model_name_or_path), *sorted(started, key=numbers, reverse=True))
    if named := next((path for path in paths if path.is_file()), None):
        return read_header(named)
    try:
        return _newest(folder)
    except CheckpointError as error:
        lacks = "the weights that it was trained on (pretrained_*) are missing; pass them as --checkpoint"
        raise CheckpointError(f"{merges}: {lacks}; {error}") from error


def _newest(folder: Path) -> Header:
    """Header of the first file by `CHECKPOINTS`. Raises CheckpointError."""
    trained = _weights_in(folder)
    for pattern in CHECKPOINTS:
        if not (fit := [path for path in folder.glob(pattern) if path in trained]):
            continue
        header = read_header(max(fit, key=numbers))
        later, update = newest(folder, ["model_*[0-9].pt"]), header.settings.get("update")
        if header.path.name != "model_last.pt" or later is None or not isinstance(update, int):
            return header
        return read_header(later) if numbers(later)[-1] > update else header
    if what := folder_of(folder) or folder_of(
        next((one.parent for one in folder.glob("*/data.pkl")), folder)
    ):
        raise CheckpointError(f"{folder}: {what}")
    if lone := [path.name for path in sorted(folder.iterdir()) if shards.is_shard(path)]:
        raise CheckpointError(f"{folder}: has shards ({some(lone)}) without their index ({shards.INDEX})")
    started = ", ".join(path.name for path in sorted(folder.glob("pretrained_*")))
    supported = "; known trainings: F5-TTS, ZipVoice, Vocos, BigVGAN"
    only = f", only its base ({started})" if started else supported
    raise CheckpointError(f"{folder}: has no checkpoint of a training{only}")


def _weights_in(folder: Path) -> list[Path]:
    fit = [path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    whole = [path for path in fit if not shards.is_shard(path)] + [*folder.glob(shards.INDEX)]
    return sorted((path for path in whole if not NOT_TRAINED.match(path.name)), key=numbers, reverse=True)


def _yamls(folder: Path) -> list[Path]:
    """YAML files of a training, including hydra's, the newest first."""
    fit = {path for pattern in YAMLS for path in folder.glob(pattern) if path.name != "licence.yaml"}
    # ESPnet stores exp/NAME and conf/NAME.yaml in one folder.
    fit |= {*folder.absolute().parent.parent.glob(f"conf/{folder.absolute().name}.yaml")}
    return sorted(fit, key=lambda path: (-path.stat().st_mtime_ns, str(path)))


def _bases(folder: Path) -> list[Known]:
    """Known weights whose file names the folder's files `pretrained_*` have."""
    names = [path.name.removeprefix("pretrained_") for path in folder.glob("pretrained_*")]
    rows = [row for row in KNOWN.values() if row.family in F5TTS]
    return [row for name in names for row in rows if row.checkpoint.endswith(f"/{name}")]


def _sized(path: Path) -> str:
    parts = shards_of(path)
    megabytes = sum(part.stat().st_size for part in parts or [path]) / 1e6
    count = f" in {len(parts)} shards" if parts else ""
    return f"{path.name} ({megabytes:,.{1 if megabytes < 10 else 0}f} MB{count})"


def _weights(path: Path, how: str, progress: str) -> str:
    return ", ".join(filter(None, (f"{_sized(path)}: {how}", progress)))


def _read(path: Path) -> Mapping[str, Any]:
    """A mapping from a JSON or YAML file; empty if the file is missing or holds no mapping."""
    try:
        text = path.read_bytes()
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return raw if isinstance(raw, Mapping) else {}


def is_training(place: Path) -> bool:
    """True for a checkpoint, and for a folder that has one and is not a bundle."""
    if not place.is_dir():
        return place.is_file()
    weights = bool(_weights_in(place)) or _vocoder_kind(place) is not None
    return (weights or adapter.is_adapter(place)) and not (place / MANIFEST).is_file()


def describe(place: Path, user_options: Mapping[str, str] | None = None) -> str:
    """Facts about a folder, missing options, and the `bundle` command. Raises CheckpointError."""
    content = look(place, user_options)
    more = [word for option in (user_options or {}).items() for word in option]
    command = [] if content.is_vocoder else ["", content.command(more)]
    return "\n".join([*content.lines(), *command])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="training, or a checkpoint in it")
    for option in OPTIONS:
        choices = tuple(VOCODERS) if option == "--vocoder" else None
        parser.add_argument(option, choices=choices, help="the same option as of `bundle`")


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Options from the command line. A folder's content supplies the others."""
    values = {option: getattr(arguments, option[2:].replace("-", "_"), None) for option in OPTIONS}
    return {option: str(value) for option, value in values.items() if value is not None}


def described(argv: Sequence[str]) -> str:
    """Description that `look` prints. Raises CheckpointError, OSError."""
    parser = argparse.ArgumentParser(prog="python -m export look")
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    return describe(arguments.folder, options_of(arguments))
