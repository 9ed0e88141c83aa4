"""Tokens for clients over TCP, and the calls that each token allows.

The file contains hashes: nobody can guess 256 random bits from their SHA-256.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import re
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from appliance.durable import locked, replace_file, storage_errors, version_of
from appliance.errors import AccessDenied, InvalidRequest, StorageError, Unauthenticated
from appliance.fields import shown

logger = logging.getLogger(__name__)

TOKEN = "token "
"""Prefix of a token's name in a caller's key."""
PREFIX = "f5_"
FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{1,64}}")
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FORMAT = 1
FILE_MODE = 0o644
"""Mode of the file: root writes it, and the daemon's user reads it."""


class Role(enum.Enum):
    SPEAK = "speak"
    """May speak, cancel a request by its id, and see the queue and the voices."""
    VOICES = "voices"
    """May store, delete and see voices."""
    ADMIN = "admin"
    """May do everything, including skip, clear, pause and resume."""


@dataclass(frozen=True)
class Token:
    """An entry of the file: the hash of a token, and its roles."""

    name: str
    roles: tuple[Role, ...]
    sha256: str
    created: str
    """Time in UTC, by RFC 3339."""

    @property
    def caller(self) -> str:
        """Key of the caller who shows the token, in characters that metadata may contain."""
        return TOKEN + quote(self.name)

    def allows(self, allowed: Iterable[Role]) -> bool:
        return Role.ADMIN in self.roles or any(role in self.roles for role in allowed)


class Tokens:
    """Tokens of a file, which is read again after changes. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """A missing file has no tokens. Raises StorageError."""
        self._path = path
        self._lock = threading.Lock()
        self._version = version_of(path)
        self._by_hash = _by_hash(listed(path))

    def __len__(self) -> int:
        return len(self._current())

    def check(self, token: str, allowed: Iterable[Role]) -> None:
        """Check that a token has one of the `allowed` roles, or admin.

        Raises Unauthenticated, AccessDenied.
        """
        if not token:
            raise Unauthenticated("a token is needed: send the metadata `authorization: Bearer TOKEN`")
        entry = self.find(token)
        if entry is None:
            raise Unauthenticated("this token is unknown or revoked; `appliance tokens add` makes one")
        if not entry.allows(allowed):
            has = ", ".join(role.value for role in entry.roles)
            need = " or ".join(role.value for role in (*allowed, Role.ADMIN))
            raise AccessDenied(f"token {entry.name!r} has the role {has}; this call needs {need}")

    def check_caller(self, key: str) -> None:
        """Raise Unauthenticated for the key of a token that no longer exists."""
        if key.startswith(TOKEN) and self.of_caller(key) is None:
            raise Unauthenticated(f"{key} is unknown or revoked")

    def of_caller(self, key: str) -> Token | None:
        return next((token for token in self._current().values() if token.caller == key), None)

    def find(self, token: str) -> Token | None:
        return self._current().get(_hash(token))

    def _current(self) -> Mapping[str, Token]:
        """Hash → token, from the file as it is now. A damaged file has no valid token."""
        with self._lock:
            version = version_of(self._path)
            if version != self._version:
                self._version = version
                try:
                    self._by_hash = _by_hash(listed(self._path))
                except StorageError as error:
                    # A token that was revoked by hand must not stay valid because of a missing comma.
                    logger.error("%s; every token is refused until the file is repaired", error)
                    self._by_hash = {}
            return self._by_hash


def add(path: Path, name: str, roles: Iterable[Role]) -> str:
    """Create and return a token; store its hash alone. Raises InvalidRequest, StorageError."""
    if not NAME_RULE.fullmatch(name):
        reason = 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-", beginning with a letter or digit'
        raise InvalidRequest("name", reason)
    token = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = Token(name, tuple(dict.fromkeys(roles)), _hash(token), now)
    with _changing(path) as tokens:
        if any(other.name == name for other in tokens):
            raise InvalidRequest("name", f"a token is named {shown(name)} already; revoke it first")
        tokens.append(record)
    return token


def revoke(path: Path, name: str) -> None:
    """Delete a token. Its next call is refused. Raises InvalidRequest, StorageError."""
    with _changing(path) as tokens:
        names = {token.name for token in tokens}
        if name not in names:
            stored_names = ", ".join(sorted(names)) or "none"
            raise InvalidRequest("name", f"no token is named {shown(name)}; there are: {stored_names}")
        tokens[:] = [token for token in tokens if token.name != name]


@contextmanager
def _changing(path: Path) -> Iterator[list[Token]]:
    """Tokens to change in place. The file is written unless the block raises. Raises StorageError."""
    with storage_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            yield (tokens := listed(path))
            records = [{**asdict(token), "roles": [role.value for role in token.roles]} for token in tokens]
            text = json.dumps({"format": FORMAT, "tokens": records}, indent=1)
            replace_file(path, text.encode(), FILE_MODE)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _by_hash(tokens: Iterable[Token]) -> Mapping[str, Token]:
    return {token.sha256: token for token in tokens}


def listed(path: Path) -> list[Token]:
    """Tokens of the file; none if it is missing. Raises StorageError."""
    try:
        with storage_errors(str(path)), suppress(FileNotFoundError):
            raw = json.loads(path.read_text("utf-8"))
            if raw["format"] != FORMAT:
                raise StorageError(f"{path}: format {raw['format']}; this version reads {FORMAT}")
            return [
                Token(
                    str(fields["name"]),
                    tuple(Role(role) for role in fields["roles"]),
                    str(fields["sha256"]),
                    str(fields["created"]),
                )
                for fields in raw["tokens"]
            ]
        return []
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: not a file of tokens: {type(error).__name__}: {error}") from error
