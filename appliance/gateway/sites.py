"""Admission of requests by the host name they were sent to, and by the web page that sent them.

A browser lets any page send requests here: CORS hides the reply from the page, but stops no request.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from appliance.access.names import AUTHORITY, OwnNames
from appliance.audio.tags import KEY
from appliance.config import GatewayConfig
from appliance.gateway.authorisation import CONNECTIONS, PROBES, changes_voices, is_open, method_of
from appliance.gateway.body import shown
from appliance.gateway.refusals import Refusal
from appliance.gateway.speech import IGNORED

logger = logging.getLogger(__name__)

ORIGIN_OF_URL = re.compile(r"([^:/]*://[^/?#]*).*", re.DOTALL)
ABSOLUTE = re.compile(r"https?://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)
"""Host and path of a request target that names its host."""
DEFAULT_PORTS = {"http": "80", "https": "443"}
PAGES_SCHEMES = {"ws": "http", "wss": "https"}
"""Scheme of a WebSocket → scheme of the origin of this gateway's own pages."""
OWN_OR_TYPED = frozenset(("same-origin", "none"))
"""Values of Sec-Fetch-Site for requests of no other site. A page cannot set this header."""
WHAT_CHAT_SAYS = "/api/"
"""Paths that show what chat says."""
MAX_LOGGED = 32
"""Number of refused origins that are logged, each once."""


class Origin(NamedTuple):
    """Origin of a web page."""

    scheme: str
    host: str
    port: str
    """Empty for the scheme's default port."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}" + (f":{self.port}" if self.port else "")


def origin_at(scheme: str, authority: str) -> Origin | None:
    """Origin at host[:port], in small letters and without the final dot; None if it is malformed."""
    match = AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    scheme, port = scheme.lower(), match[2] or ""
    return Origin(scheme, match[1].lower(), "" if port == DEFAULT_PORTS.get(scheme) else port)


def origin_of(text: str) -> Origin | None:
    """Origin, as browsers write it; None for "null" and for anything malformed."""
    scheme, mark, authority = text.partition("://")
    return origin_at(scheme, authority) if mark else None


class SitesMiddleware:
    """Passes on requests to this gateway's names that no page of another site sent; adds CORS headers."""

    def __init__(self, app: ASGIApp, config: GatewayConfig, has_tls: bool) -> None:
        self._has_tls, self._names = has_tls, OwnNames(config.listen, config.names)
        self._is_any_allowed = "*" in config.origins
        self._named = {named for origin in config.origins if (named := origin_of(origin)) is not None}
        self._named_only = _cors(app, [str(origin) for origin in self._named])
        self._for_speech = _cors(app, ["*"]) if self._is_any_allowed else self._named_only
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in CONNECTIONS and (refused := self._refusal(scope)) is not None:
            if refused.message not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(refused.message)
                logger.warning("%s", refused.message)
            await refused.response(scope)(scope, receive, send)
            return
        is_private = scope["type"] in CONNECTIONS and _is_private(scope)
        await (self._named_only if is_private else self._for_speech)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Refuses requests to other host names (DNS rebinding) and from pages of other sites.

        None if allowed.
        """
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if (absolute := ABSOLUTE.fullmatch(scope["path"])) is not None:
            hosts.append(absolute[1])
            scope["path"] = absolute[2] or "/"
        path = scope["path"]
        if path in PROBES:
            return None
        scheme = str(PAGES_SCHEMES.get(scope["scheme"], scope["scheme"]))
        # HTTP/1.0 clients may omit the header, browsers never do.
        for host in hosts or [""]:
            sent_to = origin_at(scheme, host)
            # Over TLS the browser has checked the name against the certificate.
            if sent_to is None or not (self._has_tls or sent_to.host in self._names):
                message = f"Host: {shown(host)} is not a name of this gateway; gateway.names adds names"
                return Refusal(421, message, code="misdirected_request")
            own = sent_to
        if is_open(path) or (self._is_any_allowed and not _is_private(scope)):
            return None
        if foreign := self._foreign(headers, own):
            message = f"{foreign}: sent by a page of another site, which gateway.origins does not name"
            return Refusal(403, message, code="origin_refused")
        return None

    def _foreign(self, headers: Headers, own: Origin) -> str:
        """The header that shows a page of another site; "" if no such page sent the request.

        A browser sends Origin with each POST, and with each request whose reply a script may read. Other
        GETs, such as an image's, have Sec-Fetch-Site, but over plain HTTP beyond loopback they have at most a
        Referer. A page in `gateway.origins` may show images that other people chose, so without Origin it
        counts as any other page.
        """
        if origins := headers.getlist("origin"):
            allowed = {own, *self._named}
            return next((f"Origin: {shown(text)}" for text in origins if origin_of(text) not in allowed), "")
        if sites := headers.getlist("sec-fetch-site"):
            return next((f"Sec-Fetch-Site: {shown(site)}" for site in sites if site not in OWN_OR_TYPED), "")
        pages = [ORIGIN_OF_URL.sub(r"\1", referer) for referer in headers.getlist("referer")]
        return next((f"Referer: {shown(page)}" for page in pages if origin_of(page) != own), "")


def _is_private(scope: Scope) -> bool:
    """True for a request that "*" in `gateway.origins` does not allow.

    A preflight names the request it asks for.
    """
    preflight_method = Headers(scope=scope).get("access-control-request-method", "")
    method = preflight_method if method_of(scope) == "OPTIONS" else method_of(scope)
    return scope["path"].startswith(WHAT_CHAT_SAYS) or changes_voices(scope["path"], method)


def _cors(app: ASGIApp, origins: list[str]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["retry-after", "x-request-id", IGNORED, KEY],
        # Chromium asks for this if a page of the internet calls a private address.
        allow_private_network=True,
    )
