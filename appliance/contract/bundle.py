"""The bundle: a folder with a manifest, a vocabulary and graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from appliance.contract import graphs
from appliance.contract.limits import MAX_GUIDANCE
from appliance.contract.mel import MelSpec
from appliance.contract.placement import PLACES
from appliance.contract.sampler import UPSTREAM, Sampler
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import ESPEAK_VOICE, Tokenizer, Vocabulary, read_vocabulary
from appliance.contract.yaml_text import parse_yaml
from appliance.durable import sha256
from appliance.errors import BundleError
from appliance.fields import AtLeast, Between, Count, Ranged, from_mapping, shown, to_plain

FORMAT = "1.8"
OLDEST = "1.1"
"""Oldest format that can be read. 1.2 adds keys, 1.3 `sampler`, 1.4 `shapes` and `model` in place of `arch`,
1.5 `reference`, 1.6 `encodes` and `text.durations`, 1.7 `shapes.kept`, 1.8 `text.voice`, `around`, `dialect`.
"""
MANIFEST = "manifest.yaml"
VOCAB = "vocab.txt"
FLOAT32 = "float32"
"""Variant in float32, with the weights of a half-precision bundle."""
FLOAT32_SUMS = "float32-sums"
"""Variant in float16 whose products are summed in float32."""
FUSED = "ort-cuda"
"""Variant, and backend, with fused attention. ONNX Runtime's CPU provider misreads its masks."""
INT8 = "ort-cpu-int8"
"""Variant of `ort-cpu` whose step graphs have dynamic INT8 products, for processors with fast ones."""
FRAMES_ALLOWED = range(256, 8192 + 1)
"""Allowed values of `max_frames`. Upstream's position table ends at 8192."""

Precision = Literal["fp32", "fp16", "int8", "int8-qdq"]
"""Precision of the graphs.

`int8`: dynamic, for a CPU. `int8-qdq`: fp16 with calibrated INT8 products in the step graphs.
"""
Sampling = Literal["exact", "short", "short-kv", "short-once"]
"""Computation of the reference.

`exact`: as upstream. `short`: the reference follows its known path, and the unguided row has the reply alone.
`short-kv`: as `short`, and most steps reuse the reference's keys and values. `short-once`: all steps but the
first reuse them.
"""
Encoded = Literal["frames", "tokens"]
"""Length at which `condition` encodes a text before upsampling: padded to all frames, or the tokens alone."""
Conditioning = Literal["f5", "zipvoice"]
"""Projects whose rules prepare a reference; see `voices/rules.py`."""
Duration = Literal["script", "bytes", "tokens"]


@dataclass(frozen=True)
class Arch(Ranged):
    """Architecture of the DiT, in upstream's names (`model.arch`)."""

    dim: Count
    depth: Count
    heads: Count
    ff_mult: Count = 4
    text_dim: Count = 512
    conv_layers: Annotated[int, AtLeast(0)] = 0
    dim_head: Count = 64
    text_mask_padding: bool = True
    pe_attn_head: int | None = None
    qk_norm: str | None = None
    long_skip_connection: bool = False
    text_embedding_average_upsampling: bool = False

    @property
    def encodes(self) -> Encoded:
        """Length at which `condition` encodes a text: the tokens alone, if the text blocks allow it."""
        masks = self.text_mask_padding and self.conv_layers > 0
        return "tokens" if masks and self.text_embedding_average_upsampling else "frames"


@dataclass(frozen=True)
class Shapes(Ranged):
    """Sizes that the engine needs for an architecture that is no DiT."""

    dim: Count
    """Width of the model."""
    time_rows: Count
    upsampling: graphs.Upsampling
    kept: graphs.KeptSizes | None = None
    """Sizes of a reference's states that steps reuse.

    None: steps compute them again, and sampling is `exact`.
    """


@dataclass(frozen=True)
class Vocoder:
    """Kind of the vocoder."""

    name: Literal["vocos", "bigvgan", "hifigan", "source-filter"]
    padding: Literal["center", "same"] = "center"

    def samples(self, frames: int, hop: int) -> int:
        """Samples of a number of frames. A centred inverse STFT has one hop fewer than frames."""
        return max(frames - 1, 0) * hop if self.padding == "center" else frames * hop


@dataclass(frozen=True)
class Defaults(Ranged):
    """Sampling settings that belong to the weights. NFE belongs to the configuration."""

    guidance: Annotated[float, Between(0.0, MAX_GUIDANCE)] = 2.0
    sway: Annotated[float, Between(-1e9, 1e9)] = -1.0
    """Parameter of the grid's sway; −1 puts more steps at the beginning."""
    grid: Literal["epss", "uniform", "shift"] = "epss"
    """Kind of the times of the steps; see `time_grid`."""
    shift: Annotated[float, Between(1e-9, 1.0)] = 1.0
    """Parameter of the grid `shift`."""
    target_rms: Annotated[float, Between(1e-9, 1.0)] = 0.1
    """RMS to which a quieter reference is raised."""
    cross_fade_s: Annotated[float, Between(0.0, 5.0)] = 0.15
    """Cross-fade between segments, in seconds."""
    sampling: Sampling = "exact"

    def times(self, nfe: int) -> NDArray[np.float64]:
        """(nfe + 1,) times of the grid. Raises ValueError."""
        return time_grid(nfe, grid=self.grid, sway=self.sway, shift=self.shift)


@dataclass(frozen=True)
class Text:
    """Text handling that the weights were trained with."""

    languages: tuple[str, ...] = ()
    """Languages (ISO 639-1). The first is used for lines that may be of any of them.

    Without languages, numbers and signs are not turned into words.
    """
    tokenizer: Tokenizer = "pinyin"
    case: Literal["both", "lower", "upper"] = "both"
    form: Literal["NFC", "NFD"] = "NFC"
    duration: Duration = "script"
    """Measure of a text's length.

    `script` and `bytes`: F5's bytes; but if text and transcript differ in script, `script` weighs letters by
    script. `tokens`: as ZipVoice, without a space after the transcript.
    """
    durations: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Token → its mean frames at each place (`Placement.table`), which decide lengths and where tokens lie.

    Empty: all tokens last equally long.
    """
    voice: str = ""
    """Language of the tokenizer `espeak`, by espeak's name."""
    around: tuple[str, ...] = ("", "")
    """Signs before transcript and text, and after them. They do not count for the length."""
    dialect: str = ""
    """Dialect that `around` marks, by its makers' name; information for people."""

    @property
    def lengths(self) -> str:
        """Measure of lengths, as text for people."""
        return f"{self.duration}, placed by a table" if self.durations else self.duration

    def framed(self, text: str) -> str:
        """Transcript and text as the model reads them."""
        before, after = self.around
        return f"{before}{text}{after}"

    def __post_init__(self) -> None:
        if self.tokenizer == "espeak" and not ESPEAK_VOICE.fullmatch(self.voice):
            raise ValueError(
                f"voice: must be a language of espeak, such as de or pt-br, not {shown(self.voice)}"
            )
        if self.tokenizer != "espeak" and self.voice:
            raise ValueError(f"voice: only with tokenizer: espeak, not {self.tokenizer}")
        if len(self.around) != 2:
            raise ValueError(f"around: must be two texts, before and after, not {len(self.around)}")
        if any(self.around) and self.duration == "tokens":
            raise ValueError("around: only with duration: script or bytes, not tokens")
        if self.durations and self.duration != "tokens":
            raise ValueError(f"durations: only with duration: tokens, not {self.duration}")
        for token, frames in self.durations.items():
            if len(frames) != PLACES or not all(0 < f <= FRAMES_ALLOWED[-1] for f in frames):
                raise ValueError(
                    f"durations.{shown(token)}: must be {PLACES} numbers of frames, above 0 and at most "
                    f"{FRAMES_ALLOWED[-1]}, not {shown(list(frames))}"
                )


@dataclass(frozen=True)
class Licence:
    weights: str
    source: str
    vocoder: str = "unknown"
    vocoder_source: str = ""
    note: str = ""


@dataclass(frozen=True)
class File:
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Manifest(Ranged):
    """Content of manifest.json: everything about a bundle except its graphs."""

    format: str
    family: str
    arch: Arch | None
    """Architecture of a DiT; others have `shapes` and `model`."""
    mel: MelSpec
    vocoder: Vocoder
    precision: Precision
    variants: dict[str, dict[str, str]]
    """Variant → graph → file.

    `default` has all graphs, other variants the different ones. A backend runs the variant of its name.
    """
    backends: tuple[str, ...]
    batch_invariant: bool
    """True if a lane's result does not depend on its batch."""
    max_frames: int
    """Longest segment, in frames of reference and reply together."""
    vocab_size: Count
    licence: Licence
    files: dict[str, File]
    defaults: Defaults = field(default_factory=Defaults)
    text: Text = field(default_factory=Text)
    sampler: Sampler = field(default_factory=Sampler)
    shapes: Shapes | None = None
    model: dict[str, Any] = field(default_factory=dict)
    """Architecture of another family, in its makers' names."""
    reference: Conditioning = "f5"
    """Rules that prepare a reference."""
    encodes: Encoded = "frames"
    weights: Literal["", "average", "raw"] = ""
    """Weights of the checkpoint that were exported; "" if not recorded."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Flow-matching losses on recordings with known words, measured at export."""
    parity: dict[str, Any] = field(default_factory=dict)
    """Report of the parity measured at export."""
    created_by: str = ""
    """Version of the exporter."""

    def __post_init__(self) -> None:
        if self.max_frames not in FRAMES_ALLOWED:
            low, high = FRAMES_ALLOWED[0], FRAMES_ALLOWED[-1]
            raise ValueError(f"max_frames: must be {low} to {high}, not {self.max_frames}")
        try:
            self.sampler.check_strength(self.defaults.guidance)
        except ValueError as error:
            raise ValueError(f"defaults: guidance: {error}") from None
        if (self.arch is None) == (self.shapes is None):
            raise ValueError("arch, shapes: the manifest must have one of the two")
        keeps = self.shapes is None or self.shapes.kept is not None
        if self.defaults.sampling != "exact" and not keeps:
            raise ValueError(
                f"defaults: sampling: must be exact if shapes has no kept, not {self.defaults.sampling}"
            )
        upsamples = self.arch is not None and self.arch.text_embedding_average_upsampling
        if self.text.durations and not upsamples:
            raise ValueError("text: durations: only where arch has text_embedding_average_upsampling: true")
        if self.encodes == "tokens" and (self.arch is None or self.arch.encodes != "tokens"):
            raise ValueError("encodes: must be frames where no arch upsamples a masked text, not tokens")
        super().__post_init__()

    @property
    def dimensions(self) -> graphs.Dimensions:
        shape = self.arch or self.shapes
        assert shape is not None
        return dimensions(shape, self.mel.mels, self.precision, self.sampler, self.encodes)

    @property
    def prepares(self) -> tuple[MelSpec, float, Conditioning]:
        """Everything that the features of a reference depend on."""
        return self.mel, self.defaults.target_rms, self.reference

    def times(self, nfe: int) -> NDArray[np.float64]:
        """(nfe + 1,) times of the bundle's own grid.

        Raises ValueError for a number of steps that it does not allow.
        """
        self.sampler.check_steps(nfe)
        return self.defaults.times(nfe)


def dimensions(
    arch: Arch | Shapes,
    mels: int,
    precision: Precision,
    sampler: Sampler = UPSTREAM,
    encodes: Encoded = "frames",
) -> graphs.Dimensions:
    """Dimensions of the graphs' tensors, from the architecture and the sampler."""
    of_all = graphs.Dimensions(
        dim=arch.dim,
        depth=0,
        mels=mels,
        inner=0,
        compute="float16" if precision in ("fp16", "int8-qdq") else "float32",
        conditions=len(sampler.conditions),
        embeds_guidance=sampler.guidance == "embedded",
    )
    if isinstance(arch, Shapes):
        own: dict[str, Any] = {"time_rows": arch.time_rows, "kept": arch.kept, "keeps_keys": bool(arch.kept)}
        return dataclasses.replace(of_all, upsampling=arch.upsampling, **own)
    upsampling: graphs.Upsampling = "tokens" if encodes == "tokens" else "spread"
    if not arch.text_embedding_average_upsampling:
        upsampling = "none"
    inner = arch.heads * arch.dim_head
    return dataclasses.replace(of_all, depth=arch.depth, inner=inner, upsampling=upsampling)


@dataclass(frozen=True)
class Bundle:
    """A folder with a manifest and its files."""

    folder: Path
    manifest: Manifest

    def graph(self, name: str, variant: str = "default") -> Path:
        """Path of a graph. Raises BundleError for an unknown variant or graph."""
        variants = self.manifest.variants
        try:
            return self.folder / {**variants["default"], **variants[variant]}[name]
        except KeyError as missing:
            raise BundleError(
                f"{self.folder}: no graph {name!r} in variant {variant!r}; variants: {', '.join(variants)}"
            ) from missing

    def up_to(self, seconds: float | None) -> Bundle:
        """The bundle, limited to these seconds of reference and speech together; None sets no limit."""
        if seconds is None:
            return self
        spec = self.manifest.mel
        frames = max(int(seconds * spec.frames_per_second), FRAMES_ALLOWED[0])
        most = min(self.manifest.max_frames, frames)
        return dataclasses.replace(self, manifest=dataclasses.replace(self.manifest, max_frames=most))

    def variant_for(self, backend: str) -> str:
        return backend if backend in self.manifest.variants else "default"

    @property
    def vocab(self) -> Path:
        return self.folder / VOCAB

    @property
    def words(self) -> Mapping[str, Path]:
        """Language code → file whose rows replace those of the language (words-de.tsv).

        The manifest may omit these files.
        """
        files = sorted(self.folder.glob("words-*.tsv"))
        return {path.stem.removeprefix("words-"): path for path in files}

    def vocabulary(self) -> Vocabulary:
        return read_vocabulary(self.vocab, self.manifest.text.tokenizer, self.manifest.text.voice)


def read(folder: Path, *, verify: bool = True) -> Bundle:
    """Read a bundle; `verify` checks the hash of every file.

    Raises BundleError for a missing manifest, another format, unknown or missing keys, values out of range,
    files that are missing, altered or not listed, and a vocabulary of another size or without a token of
    `text.durations` or `text.around`.
    """
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise BundleError(f"{folder}: not a bundle, it has no {MANIFEST}") from error
    except OSError as error:
        raise BundleError(f"{path}: unreadable: {error}") from error
    raw = parse_yaml(text, path, BundleError)
    if not isinstance(raw, dict):
        raise BundleError(f"{path}: must hold a mapping, not {type(raw).__name__}")
    _check_format(path, raw.get("format"))
    bundle = Bundle(folder, from_mapping(Manifest, raw, where=str(path), error=BundleError))
    _check_names(bundle)
    if verify:
        verify_files(bundle)
    vocabulary = bundle.vocabulary()
    if vocabulary.size != bundle.manifest.vocab_size:
        raise BundleError(
            f"{bundle.vocab}: {vocabulary.size} entries, vocab_size is {bundle.manifest.vocab_size}"
        )
    if strangers := vocabulary.lacks(bundle.manifest.text.durations):
        raise BundleError(f"{path}: text: durations: {strangers} not in {VOCAB}")
    if strangers := vocabulary.lacks(bundle.manifest.text.framed("")):
        raise BundleError(f"{path}: text: around: {strangers} not in {VOCAB}")
    return bundle


def write(folder: Path, manifest: Manifest) -> Bundle:
    """Hash every file, write the manifest, and read the bundle."""
    files = {
        p.relative_to(folder).as_posix(): File(sha256(p), p.stat().st_size)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MANIFEST
    }
    whole = dataclasses.replace(manifest, files=files)
    text = yaml.safe_dump(to_plain(whole), sort_keys=False, allow_unicode=True, width=110)
    (folder / MANIFEST).write_text(text, "utf-8")
    return read(folder, verify=False)


def identity(folder: Path) -> str:
    """SHA-256 of the manifest, which contains every file's hash. Raises OSError."""
    return sha256(folder / MANIFEST)


def verify_files(bundle: Bundle) -> None:
    """Raise BundleError naming the first file that differs from the manifest."""
    check_files(bundle.folder, bundle.manifest.files, "bundle")


def check_files(folder: Path, files: Mapping[str, File], what: str) -> None:
    """Raise BundleError naming the first file that differs. `what` names all of the files together."""
    for name, want in files.items():
        path = folder / name
        if not path.is_file():
            raise BundleError(f"{path}: missing; copy the {what} again")
        if (size := path.stat().st_size) != want.size_bytes:
            raise BundleError(f"{path}: {size} bytes, the manifest says {want.size_bytes}; copy it again")
        if (got := sha256(path)) != want.sha256:
            raise BundleError(
                f"{path}: damaged: sha256 {got[:12]}…, the manifest says {want.sha256[:12]}…; copy it again"
            )


def _check_format(path: Path, version: object) -> None:
    """Raise BundleError if the format is older or newer than this version reads."""
    # The format comes before the keys, because another format may have other keys.
    try:
        number = _version(str(version))
    except ValueError:
        raise BundleError(f"{path}: format {shown(version)} is not a version; this reads {FORMAT}") from None
    if number > _version(FORMAT):
        remedy = f"is newer than {FORMAT}, which this reads; update f5-appliance"
    elif number < _version(OLDEST):
        remedy = f"is older than {OLDEST}, the oldest that this reads; export it again from its checkpoint"
    else:
        return
    raise BundleError(f"{path}: format {version} {remedy}")


def _version(text: str) -> tuple[int, int]:
    major, minor = map(int, text.split("."))
    return major, minor


def _check_names(bundle: Bundle) -> None:
    """Compare the manifest with the folder: required graphs, known names, no other files.

    Raises BundleError.
    """
    manifest = bundle.manifest
    if "default" not in manifest.variants:
        raise BundleError(f"{bundle.folder}: the manifest has no variant 'default'")
    required = manifest.dimensions.required
    if missing := [name for name in required if name not in manifest.variants["default"]]:
        raise BundleError(f"{bundle.folder}: variant 'default' lacks {', '.join(missing)}")
    for variant, members in manifest.variants.items():
        if unknown := [name for name in members if name not in graphs.GRAPHS]:
            raise BundleError(
                f"{bundle.folder}: variant {shown(variant)} has unknown graphs {', '.join(unknown)}"
            )
    for name in (*manifest.files, *(f for v in manifest.variants.values() for f in v.values()), VOCAB):
        if name not in manifest.files:
            raise BundleError(f"{bundle.folder}: the manifest lists no hash for {name}")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise BundleError(f"{bundle.folder}: the manifest names a file outside the bundle: {name}")
    words = [path.name for path in bundle.words.values() if not path.is_symlink()]
    for path in sorted(bundle.folder.rglob("*")):
        name = path.relative_to(bundle.folder).as_posix()
        if name not in (*manifest.files, MANIFEST, *words) and (path.is_symlink() or not path.is_dir()):
            raise BundleError(f"{path}: the manifest does not list this file; remove it")
