"""Resumable download of official weights from the hub, with hash check and licence record.

huggingface_hub supplies address and hash, not the bytes: 2.4 deletes partial files, accepts another hash and
gives up at the first 503.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from appliance.contract.bundle import Licence
from appliance.contract.mel import Kind
from appliance.durable import publish, sha256
from export.families import NAMED
from export.licence import KNOWN_HASHES, REPOSITORIES, licence, write_record

BLOCK_BYTES = 1 << 18
TIMEOUT_S = 30.0  # without a byte
MAX_FRUITLESS = 5  # attempts in a row that brought no byte
PAUSE_S = 1.0  # before the first fruitless attempt is repeated; doubles each time
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")


Bar = Any  # tqdm's own annotations are generic over what it iterates; this one iterates nothing


class FetchError(RuntimeError):
    """A download failed."""


@dataclass(frozen=True)
class Source:
    """Files of a hub repository and their target folder."""

    repository: str
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Fetched:
    """Downloaded files, as `bundle` takes them."""

    checkpoint: Path
    vocab: Path
    kind: Kind
    vocoder: Path
    licence: Licence


@dataclass(frozen=True)
class _Remote:
    url: str
    size: int
    etag: str
    commit: str


_F5 = "SWivid/F5-TTS"
MODELS: dict[str, Source] = {
    "F5TTS_v1_Base": Source(
        _F5, "F5TTS_v1_Base", ("F5TTS_v1_Base/model_1250000.safetensors", "F5TTS_v1_Base/vocab.txt")
    ),
    "F5TTS_Base": Source(_F5, "F5TTS_Base", ("F5TTS_Base/model_1200000.safetensors", "F5TTS_Base/vocab.txt")),
    "F5TTS_Base_bigvgan": Source(
        _F5, "F5TTS_Base_bigvgan", ("F5TTS_Base_bigvgan/model_1250000.pt", "F5TTS_Base/vocab.txt")
    ),
}
"""Families with official weights; the checkpoint is the first file."""
VOCODERS: dict[str, Source] = {
    "vocos": Source("charactr/vocos-mel-24khz", "vocos-mel-24khz", ("config.yaml", "pytorch_model.bin")),
    "bigvgan": Source(
        "nvidia/bigvgan_v2_24khz_100band_256x",
        "bigvgan_v2_24khz_100band_256x",
        ("config.json", "bigvgan_generator.pt"),
    ),
}


def fetch(
    family: str,
    out: Path,
    *,
    endpoint: str | None = None,
    say: Callable[[str], None] = print,
    progress: bool = True,
) -> Fetched:
    """Download a family's official checkpoint, vocabulary and vocoder into folders under `out`.

    Files with the right hash are kept, partial ones resumed. Licences go to `say` and `licence.yaml`. Raises
    FetchError.
    """
    if family not in MODELS:
        known = f"there are for {', '.join(MODELS)}"
        if family in NAMED:
            raise FetchError(f"{family}: there are no official weights of it; {known}")
        raise FetchError(f"{family}: no such family; official weights: {known}")
    kind: Kind = "bigvgan" if family.endswith("_bigvgan") else "vocos"
    checkpoint, vocab = _fetch_all(MODELS[family], out, endpoint, say, progress)
    config, _ = _fetch_all(VOCODERS[kind], out, endpoint, say, progress)
    return Fetched(checkpoint, vocab, kind, config.parent, licence(checkpoint, config.parent))


def _fetch_all(
    source: Source, out: Path, endpoint: str | None, say: Callable[[str], None], progress: bool
) -> tuple[Path, ...]:
    terms = REPOSITORIES[source.repository]
    say(f"{source.repository}: {terms.licence}{f' ({terms.note})' if terms.note else ''}, {terms.source}")
    folder = out / source.folder
    paths, hashes, commit = [], {}, ""
    for name in source.files:
        path = folder / Path(name).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            commit, digest = _fetch_file(source.repository, name, path, endpoint, progress)
        except OSError as error:
            reason = error.strerror or _reason(error)
            advice = "; make room and run it again to continue" if _out_of_space(error) else ""
            raise FetchError(f"{path}: {reason}{advice}") from error
        paths.append(path)
        hashes[path.name] = digest
    weights = next(hashes[path.name] for path in paths if path.suffix in (".safetensors", ".pt", ".bin"))
    note = terms.note if weights in KNOWN_HASHES else f"{terms.note}; not a hash known here".lstrip("; ")
    record = dataclasses.replace(terms, source=f"{terms.source}/tree/{commit}", note=note, files=hashes)
    write_record(folder, record)
    return tuple(paths)


def _fetch_file(
    repository: str, name: str, path: Path, endpoint: str | None, progress: bool
) -> tuple[str, str]:
    """Commit and sha256 of the file."""
    what = f"{repository}/{name}"
    remote = _ask(repository, name, endpoint)
    if path.is_file() and path.stat().st_size == remote.size and not _differs(path, remote.etag):
        return remote.commit, sha256(path)
    version = hashlib.sha256(remote.etag.encode()).hexdigest()[:12]
    part = path.with_name(f"{path.name}.{version}.part")
    have = part.stat().st_size if part.is_file() else 0
    if (free := shutil.disk_usage(path.parent).free) < remote.size - have:
        raise FetchError(
            f"{what}: needs {_mib(remote.size - have)} more, {path.parent} has {_mib(free)} free"
        )
    with tqdm(
        total=remote.size, unit="B", unit_scale=True, unit_divisor=1024, desc=path.name, disable=not progress
    ) as bar:
        _fill(part, remote, bar, what, lambda: _ask(repository, name, endpoint))
    if _differs(part, remote.etag):
        part.unlink()
        raise FetchError(f"{what}: what arrived has another hash than the hub states; run it again")
    publish(part, path)
    return remote.commit, sha256(path)


def _fill(part: Path, remote: _Remote, bar: Bar, what: str, ask_again: Callable[[], _Remote]) -> None:
    fruitless = 0
    with part.open("ab") as stream:
        bar.update(stream.tell())
        while (before := stream.tell()) != remote.size:
            try:
                _append(stream, remote, bar)
                reason = f"the connection ended after {stream.tell()} of {remote.size} bytes"
            except urllib.error.HTTPError as error:
                if error.code in (404, 410):
                    raise FetchError(f"{what}: the hub answers {error.code}, it is not there") from error
                reason = f"the hub answers {error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                if _out_of_space(error):
                    raise
                reason = _reason(error)
            fruitless = 0 if stream.tell() > before else fruitless + 1
            if fruitless == MAX_FRUITLESS:
                raise FetchError(f"{what}: {reason}; run it again to continue")
            if fruitless:
                time.sleep(PAUSE_S * 2 ** (fruitless - 1))
                remote = dataclasses.replace(remote, url=ask_again().url)  # a signed address may have expired


def _append(stream: BinaryIO, remote: _Remote, bar: Bar) -> None:
    """Append the missing rest, or all of it if the server ignores ranges."""
    at = stream.tell()
    if at > remote.size:
        at = _start_again(stream, bar)
    headers = {"Range": f"bytes={at}-", "Accept-Encoding": "identity", "User-Agent": "f5-appliance"}
    request = urllib.request.Request(remote.url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        if answer.status != 206 and at:
            _start_again(stream, bar)
        while block := answer.read(min(BLOCK_BYTES, remote.size - stream.tell())):
            stream.write(block)
            bar.update(len(block))


def _start_again(stream: BinaryIO, bar: Bar) -> int:
    bar.update(-stream.tell())
    stream.truncate(0)
    return stream.seek(0)


def _ask(repository: str, name: str, endpoint: str | None) -> _Remote:
    """Query size, hash, commit and address of a file. Raises FetchError."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

    what = f"{repository}/{name}"
    url = hf_hub_url(repository, name, endpoint=endpoint)
    try:
        found = get_hf_file_metadata(url, token=False, timeout=TIMEOUT_S)
    except (EntryNotFoundError, RepositoryNotFoundError) as error:
        raise FetchError(f"{what}: not found at {url}") from error
    except HfHubHTTPError as error:
        raise FetchError(f"{what}: {_reason(error)}") from error
    except Exception as error:  # each major version of the library has another http client's errors
        raise FetchError(f"{what}: the hub cannot be reached at {url}: {_reason(error)}") from error
    if found.size is None or not found.etag or not found.commit_hash:
        raise FetchError(f"{what}: {url} is not answered as a hub does: no size, hash or commit")
    return _Remote(found.location, found.size, found.etag, found.commit_hash)


def _differs(path: Path, etag: str) -> bool:
    """True if the bytes do not match the tag, if it is a sha256 or git's hash."""
    if _SHA256.fullmatch(etag):
        return sha256(path) != etag
    if _GIT_BLOB.fullmatch(etag):
        content = path.read_bytes()  # the hub keeps only small files in git
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != etag
    return False


def _out_of_space(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "reason", None) or error).strip().split("\n", 1)[0]
    return text or type(error).__name__


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
