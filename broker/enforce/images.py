"""Step 4, Docker only: the images a container is made from.

In: the name of a shipped image (`base`, `python` …: a folder of `sandbox_images/` with a Dockerfile), or an
operator's own image reference. Out: a local tag, named after the content of the recipe (`broker/NAME:HASH`),
so an image that no longer matches its recipe is never taken for it.

Where a registry can be reached, the base is Debian's slim image. Where none can, a root of the same suite is
made with debootstrap, from the mirror that apt is configured with, and imported. Everything else is the same
Dockerfiles either way: their RUN steps use the host's network, because an engine for sandboxes needs no
bridge and often has none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from broker.enforce.debian_root import DebianRoot
from broker.enforce.docker_api import connect, engine_address
from broker.errors import HostCannotEnforce, UsageError
from broker.values import dataclass

if TYPE_CHECKING:
    from docker import APIClient

Progress = Callable[[str], None]

# Bumped when the builder itself changes what comes out.
BUILDER = "1"
_PACKAGE = Path(__file__).parent.parent
# In a wheel the recipes lie inside the package, in a checkout beside it.
RECIPES = next(
    (p for p in (_PACKAGE / "sandbox_images", _PACKAGE.parent / "sandbox_images") if p.is_dir()), None
)
_PARENT = re.compile(r"^ARG BASE=broker/([a-z0-9-]+)\s*$", re.MULTILINE)
_DEBIAN = re.compile(r"^ARG DEBIAN=(debian:([a-z]+)\S*)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One folder of `sandbox_images/`. `parent` is the shipped image it builds on, or None."""

    name: str
    folder: Path
    parent: str | None
    digest: str

    @property
    def tag(self) -> str:
        """The image's tag, by content."""
        return f"broker/{self.name}:{self.digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    """What `broker image list` says of one image. `size` is in bytes; 0 when it was not built."""

    name: str
    tag: str
    built: bool
    outdated: bool
    size: int = 0
    created: str = ""


class ImageBuildFailed(HostCannotEnforce):
    """An image could not be built. Holds the last lines of what the build said."""

    def __init__(self, name: str, why: str, lines: tuple[str, ...] = ()) -> None:
        said = "".join(f"\n    {line}" for line in lines)
        super().__init__("docker image", f"{name} was not built: {why}{said}", "See docs/images.md")
        self.name, self.lines = name, lines


def shipped() -> tuple[str, ...]:
    """Return the names of the images we ship recipes of."""
    return tuple(sorted(f.parent.name for f in RECIPES.glob("*/Dockerfile"))) if RECIPES else ()


def recipe(name: str) -> Recipe:
    """Read the recipe of a shipped image. Raises UsageError for another name."""
    if name not in shipped() or RECIPES is None:
        raise UsageError(f"there is no image {name!r}. The images are: {', '.join(shipped())}")
    folder = RECIPES / name
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    found = _PARENT.search(text)
    parent = found[1] if found else None
    digest = hashlib.sha256(BUILDER.encode())
    if parent:
        digest.update(recipe(parent).digest.encode())
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = file.read_bytes()
        digest.update(
            f"\0{file.relative_to(folder)}\0{file.stat().st_mode & 0o111}\0{len(content)}\0".encode()
        )
        digest.update(content)
    return Recipe(name=name, folder=folder, parent=parent, digest=digest.hexdigest()[:12])


def image_for(name: str) -> str | None:
    """Return the local image that `name` means, or None if it is not there.

    `name` is a shipped image's name, or an operator's own reference, which is never fetched.
    Raises HostCannotEnforce if no engine answers.
    """
    reference = recipe(name).tag if name in shipped() else name
    return reference if _exists(connect(engine_address()), reference) else None


def missing(name: str) -> str:
    """Return the sentence that says what to do about an image that is not there."""
    if name in shipped():
        return (
            f"the image {name} was not built here, or its recipe has changed. Run: broker image build {name}"
        )
    return f"the image {name} is not on this machine, and is not fetched. Run: docker pull {name}"


def states() -> tuple[ImageState, ...]:
    """Return what is known of each shipped image. Raises HostCannotEnforce if no engine answers."""
    client = connect(engine_address())
    tags: dict[str, dict[str, str]] = {}
    for image in client.images():
        for tag in image.get("RepoTags") or ():
            tags[tag] = image
    found = []
    for name in shipped():
        tag = recipe(name).tag
        image = tags.get(tag, {})
        facts = client.inspect_image(tag) if image else {}
        found.append(
            ImageState(
                name=name,
                tag=tag,
                built=bool(image),
                outdated=not image and any(other.startswith(f"broker/{name}:") for other in tags),
                size=int(facts.get("Size", 0)),
                created=str(facts.get("Created", "")),
            )
        )
    return tuple(found)


def build(name: str, progress: Progress) -> str:
    """Build a shipped image, and first what it builds on. Returns its tag; quick if it is there already.

    Raises UsageError for an unknown name, HostCannotEnforce if no engine answers, ImageBuildFailed.
    """
    wanted = recipe(name)
    client = connect(engine_address())
    if not _exists(client, wanted.tag):
        if wanted.parent:
            build(wanted.parent, progress)
        with _only_one_builder(wanted):
            if not _exists(client, wanted.tag):  # another builder may have made it while we waited
                _build(client, wanted, progress)
    client.tag(wanted.tag, f"broker/{name}", "latest", force=True)
    return wanted.tag


def _build(client: APIClient, wanted: Recipe, progress: Progress) -> None:
    if wanted.parent:
        arguments = {"BASE": recipe(wanted.parent).tag}
    else:
        arguments = {"DEBIAN": _debian(client, wanted, progress)}
    progress(f"{wanted.name}: building {wanted.tag}")
    for variable in ("http_proxy", "https_proxy", "no_proxy"):
        if value := os.environ.get(variable):
            arguments[variable] = value
    last: list[str] = []
    for event in client.build(
        path=str(wanted.folder),
        tag=wanted.tag,
        buildargs=arguments,
        network_mode="host",
        labels={"broker.image": wanted.name, "broker.recipe": wanted.digest},
        rm=True,
        forcerm=True,
        decode=True,
        timeout=3600,
    ):
        if "error" in event:
            raise ImageBuildFailed(wanted.name, str(event["error"]).strip(), tuple(last[-12:]))
        for line in str(event.get("stream", "")).splitlines():
            if line.strip():
                last = [*last[-20:], line.strip()]
                progress(f"{wanted.name}: {line.strip()}")
    if not _exists(client, wanted.tag):
        raise ImageBuildFailed(wanted.name, "the engine ended without an image", tuple(last[-12:]))


def _debian(client: APIClient, wanted: Recipe, progress: Progress) -> str:
    """Return a Debian root that the engine has: the recipe's own, fetched, or one made here."""
    found = _DEBIAN.search((wanted.folder / "Dockerfile").read_text(encoding="utf-8"))
    if not found:
        raise ImageBuildFailed(wanted.name, "its Dockerfile names no ARG DEBIAN=debian:…")
    reference, suite = found[1], found[2]
    own = f"broker/debian:{suite}"
    if _exists(client, reference):
        return reference
    if _exists(client, own):
        return own
    progress(f"{wanted.name}: asking the registry for {reference}")
    refusal = _pull(client, reference)
    if refusal is None:
        return reference
    progress(f"{wanted.name}: no registry can be reached ({refusal}); making a Debian root with debootstrap")
    root = DebianRoot.plan(suite)
    with root.made(progress) as archive:
        client.import_image_from_stream(archive, repository="broker/debian", tag=suite)
    if not _exists(client, own):
        raise ImageBuildFailed(wanted.name, "the engine did not take the Debian root")
    return own


def _pull(client: APIClient, reference: str) -> str | None:
    """Fetch an image from a registry. Returns None if it came, else why not."""
    from docker.errors import APIError
    from requests.exceptions import RequestException

    repository, _, tag = reference.partition(":")
    try:
        for event in client.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in event:
                return str(event["error"])
    except (APIError, RequestException) as error:
        return str(getattr(error, "explanation", None) or type(error).__name__)
    return None if _exists(client, reference) else "no image came"


def _exists(client: APIClient, reference: str) -> bool:
    from docker.errors import ImageNotFound

    try:
        client.inspect_image(reference)
    except ImageNotFound:
        return False
    return True


@contextmanager
def _only_one_builder(wanted: Recipe) -> Iterator[None]:
    """Two builders of one image wait for each other: the second finds it made."""
    descriptor = os.open(wanted.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
