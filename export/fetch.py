"""Resumable download of known weights from the hub, with hash check and licence record.

huggingface_hub supplies address and hash, not the bytes: version 2.4 deletes partial files, accepts another
hash and gives up at the first 503.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from tqdm import tqdm

from appliance.contract.bundle import Licence
from appliance.durable import publish, sha256
from export.families import NAMED
from export.sources.licence import (
    RECORD,
    VOCODER_TERMS,
    LicenceTerms,
    is_known,
    licence,
    read_record,
    terms,
    write_record,
)
from export.sources.weights import HUB, KNOWN, VOCODERS, Known, known

BLOCK_BYTES = 1 << 18
TIMEOUT_S = 30.0  # seconds without a byte
MAX_FRUITLESS = 5  # attempts in a row that brought no byte
WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".bin", ".ckpt")
PAUSE_S = 1.0  # seconds before the first fruitless attempt is repeated; doubles each time
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_BLOB = re.compile(r"[0-9a-f]{40}")
_GATED = {row.repository for row in KNOWN.values() if row.gated}


Bar = Any  # tqdm's own annotations are generic over the items of an iteration; this one has none


class FetchError(RuntimeError):
    """A download failed."""


@dataclass(frozen=True)
class Fetched:
    """Downloaded files, as `bundle` needs them."""

    row: Known
    checkpoint: Path
    vocab: Path
    config: Path | None
    """YAML file of the architecture, if the row has one."""
    vocoder: Path
    """Folder, or the checkpoint if that contains the vocoder."""
    licence: Licence

    @property
    def options(self) -> dict[str, object]:
        """Options of `bundle` that name the files and how to read them."""
        row = self.row
        options: dict[str, object] = {
            "--family": self.config or (row.family if row.name.startswith(row.family) else row.name),
            "--checkpoint": self.checkpoint,
            "--vocab": self.vocab,
            "--vocoder": row.vocoder,
            "--vocoder-path": self.vocoder,
            "--language": ",".join(row.languages),
            "--weights": row.weights,
        }
        if row.dialects:
            options["--dialect"] = next(iter(row.dialects))
        # The YAML file of a row contains it.
        return options if self.config else options | {"--tokenizer": row.tokenizer}


@dataclass(frozen=True)
class _Remote:
    """A file on the hub."""

    url: str
    size: int
    etag: str
    commit: str
    token: str = ""
    """Token of the hub's account, sent to the hub's addresses only."""


def row_of(name: str) -> Known:
    """Row by its name or repository. Raises FetchError."""
    if (row := known(name)) is not None:
        return row
    there = f"known are {', '.join(KNOWN)}"
    if name in NAMED:
        raise FetchError(f"{name}: no known weights have this architecture; {there}")
    raise FetchError(f"{name}: unknown weights; {there}")


def fetch(name: str, out: Path, *, endpoint: str | None = None) -> Fetched:
    """Download a row's checkpoint, vocabulary and vocoder into folders under `out`.

    Files with the right hash stay, and partial downloads are resumed. Licences are printed before any
    download, and written to `licence.yaml` with the hashes. A later download that differs is refused. Raises
    FetchError.
    """
    row = row_of(name)
    vocoder = None if row.own_vocoder else VOCODERS[row.vocoder]
    stated = [terms(row)] + ([VOCODER_TERMS[vocoder.repository]] if vocoder else [])
    for one in stated:
        note = f" ({one.note})" if one.note else ""
        print(f"{one.source.removeprefix(f'{HUB}/')}: {one.licence}{note}, {one.source}")
    if row.unverified:
        print(f"not verified here: {row.unverified}")
    folder = out / row.name
    vocab = (row.vocab_repository or row.repository, row.vocab)
    files = [(row.repository, row.checkpoint), vocab]
    files += [(row.repository, row.config)] if row.config else []
    paths = _fetch_all(files, folder, terms(row), endpoint)
    place = paths[0]
    if vocoder:
        voice = [(vocoder.repository, file) for file in vocoder.files]
        place = out / vocoder.folder
        _fetch_all(voice, place, VOCODER_TERMS[vocoder.repository], endpoint)
    config = paths[2] if row.config else None
    return Fetched(row, paths[0], paths[1], config, place, licence(paths[0], place))


def _fetch_all(
    files: Sequence[tuple[str, str]], folder: Path, about: LicenceTerms, endpoint: str | None
) -> list[Path]:
    """Fetch (repository, file)s. The commit of the first repository is recorded."""
    before = read_record(folder)
    first = before.files if before else {}
    paths = []
    hashes = {}
    commits = []
    for repository, name in files:
        path = folder / Path(name).name
        print(f"{repository}/{name} → {path}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            commit, digest = _fetch_file(repository, name, path, endpoint, first.get(path.name))
        except OSError as error:
            reason = error.strerror or _reason(error)
            advice = "; free space and run it again to continue" if _out_of_space(error) else ""
            raise FetchError(f"{path}: {reason}{advice}") from error
        paths.append(path)
        hashes[path.name] = digest
        commits.append(commit)
    weights = next(hashes[path.name] for path in paths if path.suffix in WEIGHTS_SUFFIXES)
    note = about.note if is_known(weights) else f"{about.note}; not a hash known here".lstrip("; ")
    source = f"{about.source}/tree/{commits[0]}"
    write_record(folder, dataclasses.replace(about, source=source, note=note, files=hashes))
    return paths


def _fetch_file(
    repository: str, name: str, path: Path, endpoint: str | None, first: str | None
) -> tuple[str, str]:
    """Fetch a file; return its commit and SHA-256. `first`: the hash of an earlier download, which the file
    must have; None without one.
    """
    what = f"{repository}/{name}"
    remote = _ask(repository, name, endpoint)
    if first is not None and _SHA256.fullmatch(remote.etag) and remote.etag != first:
        raise _changed(what, first, remote.etag, path.parent)
    if path.is_file() and path.stat().st_size == remote.size and not _differs(path, remote.etag):
        return remote.commit, sha256(path)
    version = hashlib.sha256(remote.etag.encode()).hexdigest()[:12]
    part = path.with_name(f"{path.name}.{version}.part")
    have = part.stat().st_size if part.is_file() else 0
    if (free := shutil.disk_usage(path.parent).free) < remote.size - have:
        raise FetchError(
            f"{what}: needs {_mib(remote.size - have)} more, but {path.parent} has {_mib(free)} free"
        )
    with tqdm(total=remote.size, unit="B", unit_scale=True, unit_divisor=1024, desc=path.name) as bar:
        _fill(part, remote, bar, what, lambda: _ask(repository, name, endpoint))
    if _differs(part, remote.etag):
        part.unlink()
        raise FetchError(f"{what}: the download's hash is not the one that the hub states; run it again")
    if first is not None and (digest := sha256(part)) != first:
        part.unlink()
        raise _changed(what, first, digest, path.parent)
    publish(part, path)
    return remote.commit, sha256(path)


def _changed(what: str, first: str, now: str, folder: Path) -> FetchError:
    return FetchError(
        f"{what}: has changed ({now[:12]}…) since the first download ({first[:12]}…, "
        f"{folder / RECORD}); remove {folder} to download the new file"
    )


def _fill(part: Path, remote: _Remote, bar: Bar, what: str, ask_again: Callable[[], _Remote]) -> None:
    """Download the rest of a file.

    Continues after a lost connection, until MAX_FRUITLESS attempts in a row bring no byte.
    """
    fruitless = 0
    with part.open("ab") as stream:
        bar.update(stream.tell())
        while (before := stream.tell()) != remote.size:
            try:
                _append(stream, remote, bar)
                reason = f"the connection ended after {stream.tell()} of {remote.size} bytes"
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in (404, 410):
                    raise FetchError(f"{what}: the hub answers {error.code}: no such file") from error
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
    """Append the missing rest, or the whole file if the server ignores ranges."""
    at = stream.tell()
    if at > remote.size:
        at = _start_again(stream, bar)
    headers = {"Range": f"bytes={at}-", "Accept-Encoding": "identity", "User-Agent": "f5-appliance"}
    if remote.token:
        headers["Authorization"] = f"Bearer {remote.token}"
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
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
    )

    what = f"{repository}/{name}"
    url = hf_hub_url(repository, name, endpoint=endpoint)
    token = get_token() or "" if repository in _GATED else ""
    try:
        remote = get_hf_file_metadata(url, token=token or False, timeout=TIMEOUT_S)
    except GatedRepoError as error:
        raise FetchError(
            f"{what}: is gated; accept its terms at {HUB}/{repository} with an account there, put one of "
            f"its tokens into HF_TOKEN, and run it again"
        ) from error
    except (EntryNotFoundError, RepositoryNotFoundError) as error:
        raise FetchError(f"{what}: not found at {url}") from error
    except HfHubHTTPError as error:
        raise FetchError(f"{what}: {_reason(error)}") from error
    except Exception as error:  # each major version of the library has another http client's errors
        raise FetchError(f"{what}: the hub cannot be reached at {url}: {_reason(error)}") from error
    if remote.size is None or not remote.etag or not remote.commit_hash:
        raise FetchError(f"{what}: {url} does not answer as a hub: no size, hash or commit")
    inside = urlsplit(remote.location).netloc == urlsplit(url).netloc
    return _Remote(remote.location, remote.size, remote.etag, remote.commit_hash, token if inside else "")


def _differs(path: Path, etag: str) -> bool:
    """True if the bytes do not match the tag, provided that it is a SHA-256 or git's hash."""
    if _SHA256.fullmatch(etag):
        return sha256(path) != etag
    if _GIT_BLOB.fullmatch(etag):
        content = path.read_bytes()  # the hub stores only small files in git
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != etag
    return False


def _out_of_space(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "reason", None) or error).strip().split("\n", 1)[0]
    return text or type(error).__name__


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
