"""Make a profile and a command ready for an agent: where its program is, what it may do by itself, its way to its model.

In: a profile, an adapter, the operator's arguments. Out: the profile with what the agent needs beside it, the command, and
small files for it. Nothing of the profile is taken away; what is added is: read-only views of the agent's own programs,
variables, one gateway, and the agent itself (broker/decide/agent.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from broker.agents.adapter import Adapter, Model
from broker.agents.program import Installed, find
from broker.decide.agent import Agent
from broker.decide.gateway import FIRST_PORT, Gateway, Secret, added_to, port_of
from broker.decide.profile import Profile
from broker.errors import UsageError
from broker.values import dataclass

FILES = "/run/broker"  # where small files of a task's are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """What is run: a profile, a command, and files for /run/broker; on which engine."""

    profile: Profile
    argv: tuple[str, ...]
    engine: str
    files: tuple[tuple[str, bytes], ...] = ()


def equip(profile: Profile, adapter: Adapter, arguments: tuple[str, ...], *, workspace: str, engine: str = "auto", home: str = "") -> Equipped:
    """Return what `broker run --agent` runs. `home` is the folder that is to be the agent's home ('': a new one).

    A program of this host's runs on this host's libraries: in bubblewrap. Docker's image has to have its own.

    Raises UsageError with the line that installs the agent, sets its key, or whatever else is missing.
    """
    engine = engine if engine != "auto" else profile.sandbox.engine
    in_image = engine == "docker" or (engine == "auto" and bool(profile.sandbox.image))
    installed = _of_the_image(adapter) if in_image else _installed(adapter)
    gateways = _gateways(profile, adapter)
    url = f"http://127.0.0.1:{port_of(gateways, adapter.model.gateway) if adapter.model else FIRST_PORT}"

    def filled(text: str) -> str:
        return text.replace("{url}", url).replace("{files}", FILES).replace("{workspace}", os.path.realpath(workspace))

    env = {name: filled(value) for name, value in adapter.env.items()}
    if installed.path:
        from broker.enforce.confinement import PATH

        env["PATH"] = ":".join((PATH, *installed.path))
    agent = Agent(
        name=adapter.name, programs=_PLACES if in_image else (installed.package,), runtimes=_RUNTIMES if in_image else (installed.runtime,) if installed.runtime else (),
        helpers=adapter.helpers, state=adapter.state, settings=adapter.settings, wrappers=adapter.wrappers, sets=adapter.sets,
        session=adapter.session,
        home=_home(home, workspace, {name: filled(text) for name, text in adapter.seed.items()}) if home else "",
    )  # fmt: skip
    return Equipped(
        profile=replace(
            profile, agent=agent, gateways=gateways,
            env=replace(profile.env, set=tuple((env | dict(profile.env.set)).items())),
            sandbox=replace(profile.sandbox, read_only=(*profile.sandbox.read_only, *installed.shown)),
        ),
        engine="docker" if in_image else "bubblewrap",
        argv=(installed.program, *map(filled, adapter.arguments), *arguments),
        files=tuple((name, filled(text).encode()) for name, text in adapter.files.items()),
    )  # fmt: skip


# Where an image has what was installed into it. All of it is the image's maker's, and nothing of it can be written.
_PLACES = ("/usr/local/lib/node_modules", "/usr/lib/node_modules", "/opt")
_RUNTIMES = ("/usr/local/bin/node", "/usr/bin/node")


def _of_the_image(adapter: Adapter) -> Installed:
    return Installed(program=adapter.program, package="")


def _installed(adapter: Adapter) -> Installed:
    found = find(adapter.program)
    if found is None:
        raise UsageError(
            f"{adapter.title} is not installed: there is no {adapter.program} on your PATH. Run: {adapter.install} "
            f"(or name a Docker image that has it: --image NAME)"
        )
    return found


def _gateways(profile: Profile, adapter: Adapter) -> tuple[Gateway, ...]:
    """Return the profile's gateways, with the agent's own where the profile has none of its name."""
    model = adapter.model
    if model is None or any(gateway.name == model.gateway for gateway in profile.gateways):
        return profile.gateways
    if not os.environ.get(model.key):
        raise UsageError(
            f"{adapter.title} needs a key for its model, and {model.key} is not set here. Export it (it stays outside of the "
            f"sandbox), or describe the way in profile {profile.name}: [profiles.{profile.name}.gateways.{model.gateway}], "
            f"see docs/gateway.md"
        )
    return added_to(profile.gateways, _gateway(model))


def _gateway(model: Model) -> Gateway:
    scheme, _, rest = model.upstream.partition("://")
    host, slash, prefix = rest.partition("/")
    name, _, port = host.partition(":")
    return Gateway(
        name=model.gateway, scheme=scheme, host=name, port=int(port or {"https": 443, "http": 80}[scheme]),
        prefix=slash + prefix.rstrip("/") if prefix else "", paths=model.paths,
        headers=((model.header, Secret(kind="env", source=(model.key,), form=model.form)),),
    )  # fmt: skip


def _home(folder: str, workspace: str, seed: Mapping[str, str]) -> str:
    """Return the real path of the agent's home, made if it is missing. Raises UsageError for one that would show too much.

    Only a home that is made here is seeded: in an older one, links of the task's could lead anywhere.
    """
    path = os.path.realpath(folder)
    work = os.path.realpath(workspace)
    own = os.path.realpath(os.path.expanduser("~"))
    for place, why in ((work, "the workspace"), (own, "your own home")):
        if path == place or place.startswith(path.rstrip("/") + "/"):
            raise UsageError(f"--agent-home {folder} is {why}, or a folder around it. Name a folder of its own: ~/.local/share/agent-home")
    if path.startswith(work + "/"):
        raise UsageError(f"--agent-home {folder} lies in the workspace, where its sessions would land. Name a folder outside of it")
    owner = os.stat(work)
    try:
        os.mkdir(path, 0o700)
        for name, text in seed.items():
            Path(path, name).write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            for made in (path, *(os.path.join(path, name) for name in seed)):
                os.chown(made, owner.st_uid, owner.st_gid)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"--agent-home {folder} cannot be made: {error.strerror}") from None
    facts = os.stat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != owner.st_uid:
        raise UsageError(f"--agent-home {folder} must be a folder that belongs to whoever owns the workspace (uid {owner.st_uid})")
    if facts.st_mode & 0o022:
        raise UsageError(f"--agent-home {folder} is writable by others. Run: chmod go-w {folder}")
    if (Path(path) / ".ssh").exists():
        raise UsageError(f"--agent-home {folder} holds .ssh: it is somebody's own home. Name a folder that is the agent's alone")
    return path
