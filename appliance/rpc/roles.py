"""Authorisation over TCP: roles by method, and the key that identifies a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.access import Role, Tokens
from appliance.rpc.context import Context

HEADER = "authorization"
SCHEME = "bearer"
SEE_VOICES = (Role.SPEAK, Role.VOICES)
ROLES: Mapping[str, tuple[Role, ...]] = {
    "Synthesize": (Role.SPEAK,),
    "StreamSynthesize": (Role.SPEAK,),
    "SynthesizeOnline": (Role.SPEAK,),
    "GetRivaSynthesisConfig": (Role.SPEAK,),
    "Session": (Role.SPEAK,),
    "CancelSynthesis": (Role.SPEAK,),
    "ListUtterances": (Role.SPEAK,),
    "WatchQueue": (Role.SPEAK,),
    "Listen": (Role.SPEAK,),
    "CancelUtterances": (),
    "Skip": (),
    "Clear": (),
    "Pause": (),
    "Resume": (),
    "ListVoices": SEE_VOICES,
    "GetVoice": SEE_VOICES,
    "CreateVoice": (Role.VOICES,),
    "UpdateVoice": (Role.VOICES,),
    "DeleteVoice": (Role.VOICES,),
}
"""Method → roles, of which one is needed, or admin."""


@dataclass(frozen=True)
class CallAccess:
    """Checks a call's token; over the Unix socket none is needed."""

    tokens: Tokens | None = None
    """None: no token is needed."""

    def __call__(self, method: str, context: Context) -> None:
        """Raises Unauthenticated, AccessDenied."""
        if self.tokens is not None and not _is_local(context):
            self.tokens.check(_token(context), ROLES.get(method, ()))

    def peer(self, context: Context) -> str:
        """Caller's key for limits: token name, else address without a port; empty if local."""
        if _is_local(context):
            return ""
        token = self.tokens.find(_token(context)) if self.tokens is not None else None
        return token.name if token else context.peer().rpartition(":")[0]


def _is_local(context: Context) -> bool:
    return context.peer().startswith("unix:")


def _token(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == HEADER:
            scheme, _, token = str(value).partition(" ")
            return token.strip() if scheme.lower() == SCHEME else ""
    return ""
