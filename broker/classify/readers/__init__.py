"""Step 2: readers for programs whose arguments are a language of their own. The tables name them (`reader = …`).

Each takes a Call and adds to its finding. A family is loaded when a program of it is met.
"""

from __future__ import annotations

from importlib import import_module

from broker.classify.call import READERS, Reader

FAMILIES = {
    "building": "asks toolchain goals make cmake compiler ar formatter prettier tsc in-environment go-run go-install npm-run npm-config npm-pkg",
    "builtins": "cd export set unset read eval source trap exec alias hash compgen fc history wait enable let printf test echo",
    "databases": "sql sqlite redis",
    "files": "unless_dry unless_shown dd tar zip unzip compressor chmod chown",
    "git": "git git-external git-branch git-clean git-foreach vcs git-config git-remote-url git-checkout",
    "interpreters": "shell interpreter python",
    "media": "window ffmpeg magick exiftool sox ghostscript exiv2 pandoc",
    "network": "curl httpie ssh transfer socat objects asked escapes browser",
    "searching": "find fd",
    "services": "service remote-copy container http-verbs",
    "system": "ps printenv kill crontab at init look verbs sysctl tmux",
    "text": "sed awk jq mlr ex",
    "windows": "windows powershell",
    "wrappers": "env xargs parallel sudo command_or_shell su watch flock script busybox ldso command_after_dashes nix-shell",
}
"""The readers of each module here, by the names that tables use."""

_HOMES = {name: family for family, names in FAMILIES.items() for name in names.split()}


def reader_named(name: str) -> Reader:
    """Return a reader. Raises KeyError for a name that no module here registers."""
    found = READERS.get(name)
    if found is None:
        import_module(f"broker.classify.readers.{_HOMES[name]}")
        found = READERS[name]
    return found
