"""Step 4, Docker only: the one connection to the Docker engine, and what can be known before using it.

The SDK takes some 120 ms to import and asks the engine for its version on each new client, so both happen
once per process and only when Docker is really wanted.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import TYPE_CHECKING

from broker.errors import HostCannotEnforce

if TYPE_CHECKING:
    from docker import APIClient

# What an engine must speak: 1.41 is Docker 20.10, the oldest one we test with.
OLDEST_API = (1, 41)
NEWEST_API = (1, 47)
# Seconds for one answer. A create or start on a loaded machine takes single seconds.
TIMEOUT = 60
START_IT = "Start it (systemctl start docker), or use --engine bubblewrap"
JOIN_GROUP = 'Join its group (sudo usermod -aG docker "$USER", then log in again), or use --engine bubblewrap'
NEED_LOCAL = "Use an engine that runs on this machine itself, or --engine bubblewrap"


def engine_address() -> str:
    """Return where the engine listens: DOCKER_HOST, else the system's socket."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


@functools.cache
def connect(address: str) -> APIClient:
    """Return a client of the engine at `address`, its API version settled.

    Raises HostCannotEnforce if no engine answers there, if it is too old, or if it runs on another kernel:
    then neither its files nor its processes are ours to supervise.
    """
    if not address.startswith("unix://"):
        raise HostCannotEnforce("docker", f"the engine at {address} is not on this machine", NEED_LOCAL)
    path = address.removeprefix("unix://")
    _knock(path)
    import docker
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        # Any version that every supported engine knows, for the one question that settles the real one.
        client = docker.APIClient(base_url=address, version=_text(OLDEST_API), timeout=TIMEOUT)
        facts = client.version(api_version=False)
    except (DockerException, RequestException) as error:
        raise HostCannotEnforce(
            "docker", f"the Docker engine at {path} does not answer ({type(error).__name__})", START_IT
        ) from error

    if facts.get("KernelVersion") != os.uname().release:
        raise HostCannotEnforce(
            "docker",
            f"the engine at {address} runs on another kernel ({facts.get('KernelVersion')}, here "
            f"{os.uname().release}): it is in a virtual machine or remote, and cannot share a socket with us",
            NEED_LOCAL,
        )
    newest = _version(str(facts.get("ApiVersion", "0.0")))
    if newest < OLDEST_API:
        raise HostCannotEnforce(
            "docker", f"the engine is too old (API {_text(newest)})", "Install Docker 20.10 or newer"
        )
    oldest = _version(str(facts.get("MinAPIVersion", "1.12")))
    client._version = _text(max(min(newest, NEWEST_API), oldest))
    return client


def api_version(client: APIClient) -> tuple[int, int]:
    """Return the API version that was settled with the engine."""
    return _version(client.api_version)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return (int(major), int(minor or 0))


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _knock(path: str) -> None:
    """Raise HostCannotEnforce if nobody is at the socket. Spares the SDK's import where no engine is."""
    try:
        with socket.socket(socket.AF_UNIX) as knock:
            knock.settimeout(TIMEOUT)
            knock.connect(path)
    except FileNotFoundError:
        raise HostCannotEnforce(
            "docker", f"no Docker engine runs here ({path} does not exist)", START_IT
        ) from None
    except PermissionError:
        raise HostCannotEnforce(
            "docker", f"you may not talk to the Docker engine ({path} is not yours to open)", JOIN_GROUP
        ) from None
    except OSError as error:
        why = f"no Docker engine answers at {path} ({error.strerror or error})"
        raise HostCannotEnforce("docker", why, START_IT) from None
