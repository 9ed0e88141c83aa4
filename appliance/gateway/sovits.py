"""GPT-SoVITS' HTTP interface (api_v2)."""

from __future__ import annotations

from starlette.routing import BaseRoute

ROUTES: list[BaseRoute] = []
