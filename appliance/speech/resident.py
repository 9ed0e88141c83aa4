"""Bundles that a daemon has loaded: that of `bundle.path`, and those that rows of `text.languages` name."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.config import Config, LanguageRow
from appliance.contract import bundle
from appliance.contract.bundle import Bundle
from appliance.errors import BundleError, ConfigError


def bundle_of(config: Config) -> Bundle:
    """That of `bundle.path`, unverified, up to the longest segment. Raises BundleError."""
    # Resolved: graphs are loaded later too, when the path may be a link to another bundle already.
    folder = Path(os.path.realpath(config.bundle.path))
    return bundle.read(folder, verify=False).up_to(config.engine.longest_s)


def bundles_of(config: Config) -> list[Bundle]:
    """All, that of `bundle.path` first. Raises as `bundles_beside`."""
    first = bundle_of(config)
    return [first, *bundles_beside(config, first).values()]


def bundles_beside(config: Config, present: Bundle) -> dict[str, Bundle]:
    """Bundles that rows of the table name, but the present one, by their real paths.

    Raises BundleError, and ConfigError for one that cannot be beside the present one.
    """
    found: dict[str, Bundle] = {}
    for code, row in config.text.languages.items():
        key = key_of(row, config)
        if not key or key in found:
            continue
        read = bundle.read(Path(key), verify=False).up_to(config.engine.longest_s)
        try:
            check_beside(read, present)
        except BundleError as error:
            raise ConfigError(f"text.languages.{code}.bundle: {error}") from None
        if config.engine.idle_unload_s is not None:
            raise ConfigError(f"text.languages.{code}.bundle: is not possible with engine.idle_unload_s")
        found[key] = read
    return found


def check_beside(read: Bundle, present: Bundle) -> None:
    """Raises BundleError for one that cannot be beside the present one."""
    if read.manifest.prepares != present.manifest.prepares:
        raise BundleError(
            f"{read.folder}: its mel, or its rule of references, is another than that of bundle.path, for "
            "which the voices are prepared"
        )


def key_of(row: LanguageRow, config: Config) -> str:
    """Real path of a row's bundle; "" for that of `bundle.path`."""
    path = os.path.realpath(row.bundle or config.bundle.path)
    return "" if path == os.path.realpath(config.bundle.path) else path
