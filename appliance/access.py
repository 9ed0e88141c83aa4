"""Tokens that clients of the TCP address show, and what each of them allows.

The file holds names, roles and SHA-256 hashes, as JSON. Tokens are 256 bits from the system's random source,
so a plain hash of one cannot be searched for.
"""

from __future__ import annotations

import enum
import hashlib
import json
import logging
import re
import secrets
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from appliance.durable import locked, replace_file, version_of
from appliance.errors import AccessDenied, InvalidRequest, StorageError, Unauthenticated

logger = logging.getLogger(__name__)

PREFIX = "f5_"
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FORMAT = 1
FILE_MODE = 0o644
"""Root makes tokens, the daemon's user reads them; there is nothing secret in a hash of 256 random bits."""


class Role(enum.Enum):
    """Permissions of a token."""

    SPEAK = "speak"
    """Speak, cancel a request by its id, see the queue and the voices."""
    VOICES = "voices"
    """Store and delete voices, and see them."""
    ADMIN = "admin"
    """Everything, a moderator's verbs included."""


@dataclass(frozen=True)
class Token:
    """Stored record of a token; never the token itself."""

    name: str
    roles: tuple[Role, ...]
    sha256: str
    created: str
    """RFC 3339, UTC."""

    def allows(self, wanted: Iterable[Role]) -> bool:
        """True if one of its roles is among these, or is admin."""
        return Role.ADMIN in self.roles or any(role in self.roles for role in wanted)


class Tokens:
    """The tokens of a file, which is read again when it has changed. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Raises StorageError when the file is there and cannot be used; one that is not there is empty."""
        self._path = path
        self._lock = threading.Lock()
        self._version = version_of(path)
        self._by_hash = _by_hash(_read(path))

    def __len__(self) -> int:
        return len(self._current())

    def check(self, token: str, wanted: Iterable[Role]) -> None:
        """Let a token pass that has one of these roles, or admin. Raises Unauthenticated, AccessDenied."""
        if not token:
            raise Unauthenticated("a token is needed: send the metadata `authorization: Bearer TOKEN`")
        held = self.find(token)
        if held is None:
            raise Unauthenticated("this token is unknown or revoked; `appliance tokens add` makes one")
        if not held.allows(wanted):
            has = ", ".join(role.value for role in held.roles)
            need = " or ".join(role.value for role in (*wanted, Role.ADMIN))
            raise AccessDenied(f"token {held.name!r} has the role {has}; this call needs {need}")

    def find(self, token: str) -> Token | None:
        """Return the record of a valid token."""
        return self._current().get(_hash(token))

    def _current(self) -> Mapping[str, Token]:
        with self._lock:
            version = version_of(self._path)
            if version != self._version:
                self._version = version
                try:
                    self._by_hash = _by_hash(_read(self._path))
                except StorageError as error:
                    # A token that was revoked by hand must not stay good because of a missing comma.
                    logger.error("%s; no token is good until that is mended", error)
                    self._by_hash = {}
            return self._by_hash


def add(path: Path, name: str, roles: Iterable[Role]) -> str:
    """Make a token and return it; only its hash is kept. Raises InvalidRequest, StorageError."""
    if not NAME_RULE.fullmatch(name):
        reason = 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-", beginning with a letter or digit'
        raise InvalidRequest("name", reason)
    token = PREFIX + secrets.token_urlsafe(32)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    made = Token(name, tuple(dict.fromkeys(roles)), _hash(token), now)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            there = _read(path)
            if any(other.name == name for other in there):
                raise InvalidRequest("name", f"a token is named {name!r} already; revoke it first")
            _write(path, [*there, made])
    except StorageError:
        raise
    except OSError as error:
        raise _unusable(path, error) from error
    return token


def revoke(path: Path, name: str) -> None:
    """Forget a token; a running daemon refuses its next call. Raises InvalidRequest, StorageError."""
    try:
        with locked(path.parent):
            there = _read(path)
            kept = [token for token in there if token.name != name]
            if len(kept) == len(there):
                known = ", ".join(sorted(token.name for token in there)) or "none"
                raise InvalidRequest("name", f"no token is named {name!r}; there are: {known}")
            _write(path, kept)
    except StorageError:
        raise
    except OSError as error:
        raise _unusable(path, error) from error


def listed(path: Path) -> list[Token]:
    """The tokens of a file, in order of their making. Raises StorageError."""
    return _read(path)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _by_hash(tokens: Iterable[Token]) -> Mapping[str, Token]:
    return {token.sha256: token for token in tokens}


def _read(path: Path) -> list[Token]:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unusable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: not a file of tokens: {error}") from error
    try:
        if raw["format"] != FORMAT:
            raise StorageError(f"{path}: format {raw['format']}; this version reads {FORMAT}")
        return [_token(fields) for fields in raw["tokens"]]
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: not a file of tokens: {type(error).__name__}: {error}") from error


def _token(fields: Mapping[str, Any]) -> Token:
    roles = tuple(Role(role) for role in fields["roles"])
    return Token(str(fields["name"]), roles, str(fields["sha256"]), str(fields["created"]))


def _write(path: Path, tokens: Iterable[Token]) -> None:
    """Raises OSError."""
    kept = [
        {"name": t.name, "roles": [role.value for role in t.roles], "sha256": t.sha256, "created": t.created}
        for t in tokens
    ]
    replace_file(path, json.dumps({"format": FORMAT, "tokens": kept}, indent=1).encode(), FILE_MODE)


def _unusable(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path}: {error.strerror or error}")
