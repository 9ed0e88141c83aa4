"""Commands on the box: tokens, admin, bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.addresses import ADMIN_SOCKET
from appliance.cli.options import Failure, add_config, own_config, print_line, sysroot

if TYPE_CHECKING:
    from appliance.client import Status
    from appliance.contract.bundle import Bundle


def add_tokens(parser: argparse.ArgumentParser) -> None:
    from appliance.access.token_file import Role

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    making = actions.add_parser("add", help="make a token and print it; it cannot be shown again")
    making.add_argument("name", help="name of its program")
    making.add_argument(
        "--role", action="append", choices=[role.value for role in Role], help="repeatable; absent: speak"
    )
    listing = actions.add_parser("list", help="list names, roles and age")
    revoking = actions.add_parser("revoke", help="refuse it from the next call on")
    revoking.add_argument("name")
    for action in (making, listing, revoking):
        action.add_argument("--file", type=Path, help="absent: server.tokens of the configuration")
        add_config(action)
    parser.set_defaults(run=_tokens)


def _tokens(options: argparse.Namespace) -> int:
    from appliance.access import token_file

    path = options.file
    if path is None:
        configured = own_config(options.config, options.set).server.tokens
        if not configured:
            raise Failure("server.tokens is empty: name a file there, or pass --file")
        path = Path(configured)
    if options.action == "add":
        print_line(token_file.add(path, options.name, map(token_file.Role, options.role or ["speak"])))
    elif options.action == "revoke":
        token_file.revoke(path, options.name)
    else:
        for token in token_file.listed(path):
            roles = ", ".join(role.value for role in token.roles)
            print_line(f"{token.name:<24}  {roles:<24}  made {token.created}")
    return 0


def add_admin(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    level = verbs.add_parser("log-level", help="until the next reload or start")
    level.add_argument("level", choices=("debug", "info", "warning", "error"))
    swap = verbs.add_parser("swap", help="speak from another bundle; no stream is dropped")
    swap.add_argument("bundle", type=Path)
    others = (
        ("status", "show the daemon's state"),
        ("drain", "finish requests under way, and end"),
        ("reload", "read the configuration again"),
        ("self-test", "let the engine speak a silence"),
    )
    for command in (level, swap, *(verbs.add_parser(verb, help=about) for verb, about in others)):
        command.add_argument(
            "--socket", dest="address", default=ADMIN_SOCKET, help="its Unix socket (%(default)s)"
        )
    parser.set_defaults(run=_admin)


def _admin(options: argparse.Namespace) -> int:
    from appliance.client import Operator

    with Operator(options.address) as operator:
        if options.verb == "status":
            _print_status(operator.status())
        elif options.verb == "drain":
            operator.drain()
        elif options.verb == "reload":
            if sections := operator.reload():
                print_line(f"only a restart applies the changes in {', '.join(sections)}")
        elif options.verb == "self-test":
            print_line(f"{operator.self_test():.3f} s")
        elif options.verb == "log-level":
            operator.log_level(options.level)
        else:
            _print_status(operator.swap(str(options.bundle.absolute())))
    return 0


def _print_status(status: Status) -> None:
    for field in status.DESCRIPTOR.fields:
        value = getattr(status, field.name)
        text = ", ".join(value) if field.name == "paused" else value
        if field.name == "passed_over":
            text = "; ".join(f"{one.backend}: {one.reason}" for one in value)
        text = f"{value:.0f}" if isinstance(value, float) else text
        print_line(f"{field.name:<11} {text}")


def add_bundle(parser: argparse.ArgumentParser) -> None:
    from appliance.bundles import ARCHIVES

    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    install = actions.add_parser("install", help="verify a bundle, load it, and put it in use")
    install.add_argument("source", type=Path, metavar="PATH", help=f"a bundle's folder, or {ARCHIVES} of one")
    add = actions.add_parser("add", help="verify and store a bundle, for a row of text.languages")
    add.add_argument("source", type=Path, metavar="PATH", help=f"a bundle's folder, or {ARCHIVES} of one")
    back = actions.add_parser("back", help="return to the previous bundle")
    for action in (install, back):
        action.add_argument(
            "--restart", action="store_true", help="restart the daemon; return if it does not speak"
        )
    for action in (install, add, back, actions.add_parser("list", help="list the stored bundles")):
        add_config(action)
    parser.set_defaults(run=_bundle)


def _bundle(options: argparse.Namespace) -> int:
    from appliance.box.system import open_box
    from appliance.bundles import BundleStore, Restart, load_on_cpu, running_folder
    from appliance.speech import resident

    loaded = own_config(options.config, options.set)
    rows = [row.bundle for row in loaded.text.languages.values() if row.bundle]
    store = BundleStore(loaded.bundle.path, print_line, rows)
    if options.action == "list":
        for stored in store.stored():
            manifest = stored.manifest
            about = f"{manifest.family} {manifest.precision}" if manifest else stored.problem
            print_line(f"{stored.use:<7}  {stored.folder}  {about}")
        return 0
    if options.action == "add":
        present = resident.bundle_of(loaded)

        def check(bundle: Bundle) -> None:
            resident.check_secondary(bundle, present)
            load_on_cpu(bundle, loaded.engine)

        folder = store.add(options.source, check)
        print_line(f"name it, or the next install removes it: text.languages.CODE.bundle: {folder}")
        return 0
    prove = Restart(loaded, open_box(*sysroot()).tools) if options.restart else None
    before = running_folder(loaded)
    if options.action == "install":
        new = store.install(
            options.source, lambda read: load_on_cpu(read, loaded.engine), prove=prove, running=before
        )
    else:
        new = store.back(prove=prove)
    print_line(f"in use: {new}" + (", and it speaks" if prove else ""))
    if not prove and before != new:
        print_line("the daemon speaks from it after: sudo systemctl restart f5-appliance")
    return 0
