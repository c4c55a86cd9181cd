"""devcontainer.json: image, environment and limits. What takes the walls down (privileged, capabilities, host network) is refused."""

from __future__ import annotations

import re
from typing import Any

from broker.classify.risk import Risk
from broker.profiles.importers.draft import Draft
from broker.profiles.importers.plain import items, jsonc, table, texts
from broker.profiles.quantity import parse_size, show_size

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_HOST = re.compile(r"\$\{(?:localEnv|env):([A-Za-z_][A-Za-z0-9_]*)\}")
_REFUSED = ("--privileged", "--cap-add", "--security-opt", "--device", "--pid", "--ipc", "--userns", "--network", "--net", "-v", "--volume", "--mount")
_SIZES = {"--memory": "memory", "-m": "memory", "--shm-size": "shm_size"}


def read(text: str, _: str, name: str | None) -> tuple[Draft, ...]:
    """Return the container as a draft."""
    config = jsonc(text)
    draft = Draft(name=name or "devcontainer", description="Imported from a devcontainer")
    # A devcontainer is a place, not a policy: whatever is started in it may do anything there.
    draft.raise_to(Risk.LOCAL_WRITE)
    draft.narrowed("every command", 'max_risk = "local_write". List what is to run code (broker profile new finds it)')
    image = config.get("image")
    if isinstance(image, str) and _IMAGE.fullmatch(image):
        draft.sandbox["image"] = image
        draft.imported(f"image {image}", "sandbox.image: it makes Docker necessary")
    elif image is not None:
        draft.dropped(f"image {image}", "not the name of an image")
    _refused(draft, config)
    _environment(draft, config)
    _arguments(draft, texts(config.get("runArgs")))
    for mount in items(config.get("mounts")):
        _mount(draft, mount)
    known = {
        "image", "privileged", "capAdd", "securityOpt", "containerEnv", "remoteEnv", "runArgs", "mounts", "name", "build",
        "dockerFile", "dockerComposeFile", "features", "$schema",
    }  # fmt: skip
    for key in config.keys() - known:
        draft.dropped(key, "run by the broker's operator, or not at all" if key.endswith("Command") else "no permission")
    return (draft,)


def _refused(draft: Draft, config: dict[str, Any]) -> None:
    for key in ("privileged", "capAdd", "securityOpt"):
        if config.get(key):
            draft.dropped(key, "refused: a sandbox has no capabilities and its own rules")
    for key in ("build", "dockerFile", "dockerComposeFile"):
        if key in config:
            draft.dropped(key, "build the image yourself, and name it in sandbox.image")
    for feature in table(config.get("features")):
        draft.dropped(f"feature {feature}", "it is installed at start, from the network: put it into the image")


def _environment(draft: Draft, config: dict[str, Any]) -> None:
    from broker.profiles.check import names_a_secret

    for key in ("containerEnv", "remoteEnv"):
        for variable, value in table(config.get(key)).items():
            shown = f"{key} {variable}"
            if not variable.isidentifier() or not isinstance(value, str):
                draft.dropped(shown, "not a plain variable")
            elif names_a_secret(variable):
                draft.dropped(shown, "it looks like a secret; env.pass hands one in if you must")
            elif (found := _HOST.fullmatch(value)) is not None and found[1] == variable:
                draft.passed.setdefault(variable)
                draft.env.pop(variable, None)
                draft.imported(shown, "env.pass")
            elif "${" in value or "\0" in value:
                draft.dropped(shown, "its value is computed when the container starts")
            else:
                draft.env[variable] = value
                draft.passed.pop(variable, None)
                draft.imported(shown, "env.set")


def _arguments(draft: Draft, words: list[str]) -> None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        shown = f"runArgs {option} {value}".strip()
        if option.startswith(_REFUSED):
            none = option in {"--network", "--net"} and value == "none"
            (draft.imported if none else draft.dropped)(shown, "a task has no network" if none else "refused: it opens the sandbox")
        elif not _limit(draft, option, value, shown):
            draft.dropped(shown, "not a limit that a profile knows")


def _limit(draft: Draft, option: str, value: str, shown: str) -> bool:
    try:
        if option in _SIZES:
            draft.sandbox[_SIZES[option]] = show_size(parse_size(value))
        elif option == "--cpus" and 0.01 <= float(value) <= 4096:
            draft.sandbox["cpus"] = float(value)
        elif option == "--pids-limit" and 1 <= int(value) <= 1 << 22:
            draft.sandbox["pids"] = int(value)
        else:
            return False
    except ValueError:
        return False
    draft.imported(shown, "a limit of the sandbox")
    return True


def _mount(draft: Draft, mount: object) -> None:
    given = mount if isinstance(mount, dict) else dict(
        part.partition("=")[::2] for part in str(mount).split(",") if part
    )  # fmt: skip
    source, target = str(given.get("source", given.get("src", ""))), str(given.get("target", given.get("destination", given.get("dst", ""))))
    shown = f"mount {source} at {target}"
    read_only = "readonly" in given or "ro" in given
    if "docker.sock" in source:
        draft.dropped(shown, "refused: whoever has the engine's socket has the host")
    elif source.startswith("/") and source == target and read_only and ".." not in source and source.count("/") > 1:
        draft.sandbox.setdefault("read_only", []).append(source)
        draft.imported(shown, "sandbox.read_only")
    else:
        draft.dropped(shown, "a host's folder can be shown at its own path, read-only: sandbox.read_only")
