"""Authorisation over TCP: roles by method, and the key that identifies a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.access.token_file import Role, Token, Tokens
from appliance.rpc.context import CALLER_KEY, Context

HEADER = "authorization"
SCHEME = "bearer"
LOCAL = "local"
"""Identity of the Unix socket's users, unless the gateway names one."""
GUARDED = ("/appliance.v1.", "/nvidia.riva.tts.")
"""Packages whose methods need a token. Health and reflection need none."""
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
    "Moderate": (),
    "Unmoderate": (),
    "Approve": (),
    "Reject": (),
    "Preview": (),
    "ListVoices": SEE_VOICES,
    "GetVoice": SEE_VOICES,
    "CreateVoice": (Role.VOICES,),
    "UpdateVoice": (Role.VOICES,),
    "DeleteVoice": (Role.VOICES,),
    "CreateStyle": (Role.VOICES,),
    "DeleteStyle": (Role.VOICES,),
}
"""Method → roles, of which a caller needs one. The role admin is enough for every method."""


@dataclass(frozen=True)
class CallAccess:
    """Checks a call's token. Calls over the Unix socket need no token."""

    tokens: Tokens | None = None
    """Valid tokens; None if calls need no token."""

    def __call__(self, method: str, context: Context) -> None:
        """Raise Unauthenticated or AccessDenied if the call's token does not allow the method."""
        name = method.rpartition("/")[2]
        if self.tokens is None or not method.startswith(GUARDED):
            return
        if not _is_local(context):
            self.tokens.check(_token(context), ROLES.get(name, ()))
        else:
            self.tokens.check_caller(_value(context, CALLER_KEY))

    def caller(self, context: Context) -> str:
        """Identity of a caller for limits: the token's name, else the address without port, else `LOCAL`."""
        if _is_local(context):
            return _value(context, CALLER_KEY) or LOCAL
        token = self._held(context)
        return token.caller if token else context.peer().rpartition(":")[0]

    def reach(self, context: Context) -> str:
        """Identity of the caller whose requests the call may end or replace; "" for all callers' requests."""
        token = self._held(context)
        return "" if token is None or Role.ADMIN in token.roles else token.caller

    def _held(self, context: Context) -> Token | None:
        if self.tokens is None:
            return None
        if _is_local(context):
            return self.tokens.of_caller(_value(context, CALLER_KEY))
        return self.tokens.find(_token(context))


def _is_local(context: Context) -> bool:
    return context.peer().startswith("unix:")


def _token(context: Context) -> str:
    scheme, _, token = _value(context, HEADER).partition(" ")
    return token.strip() if scheme.lower() == SCHEME else ""


def _value(context: Context, header: str) -> str:
    return next((str(value) for key, value in context.invocation_metadata() or () if key == header), "")
