"""Bundles of a box: `source` copies one, `installed` puts it in use or goes back, `restart` tests it."""

from appliance.bundles.installed import BundleStore
from appliance.bundles.restart import Restart, load_on_cpu, running_folder
from appliance.bundles.source import ARCHIVES

__all__ = ["ARCHIVES", "BundleStore", "Restart", "load_on_cpu", "running_folder"]
