"""Step 4: which engine makes the container, and why. The reason is printed and recorded."""

from __future__ import annotations

from broker.decide.profile import Profile
from broker.enforce.engine import Engine
from broker.errors import HostCannotEnforce, UsageError

NAMES = ("auto", "docker", "bubblewrap")


def engine_named(name: str) -> Engine:
    """Return the engine with this name. The docker SDK is imported only when Docker is meant."""
    if name == "bubblewrap":
        from broker.enforce.bubblewrap_engine import BubblewrapEngine

        return BubblewrapEngine()
    if name == "docker":
        from broker.enforce.docker_engine import DockerEngine

        return DockerEngine()
    raise UsageError(f"unknown engine {name}: it is one of {', '.join(NAMES)}")


def choose_engine(asked: str, profile: Profile) -> tuple[Engine, str]:
    """Return the engine and one sentence why.

    The command line wins, then the profile; `auto` takes Docker when its engine answers and the image is
    there, else bubblewrap. Raises HostCannotEnforce with the remedy when the wanted one cannot serve.
    """
    for source, name in (("--engine", asked), (f"profile {profile.name}", profile.sandbox.engine)):
        if name != "auto":
            engine = engine_named(name)
            problem = engine.unavailable(profile.sandbox.image) if name == "docker" else None
            if problem:
                why, _, remedy = problem.partition(". ")
                if "--engine bubblewrap" not in remedy:
                    remedy += ". Or use --engine bubblewrap"
                raise HostCannotEnforce("container", why, remedy)
            image = profile.sandbox.image
            instead = f", with this host's programs instead of image {image}" if image and name == "bubblewrap" else ""
            return engine, f"{source} says {name}{instead}"
    if docker_may_answer():
        docker = engine_named("docker")
        problem = docker.unavailable(profile.sandbox.image)
        if problem is None:
            return docker, "auto: the Docker engine answers and the image is there"
        if profile.sandbox.image:
            raise HostCannotEnforce("container", problem, f"Profile {profile.name} names an image, which needs Docker")
        return engine_named("bubblewrap"), f"auto: {problem.partition('. ')[0]}"
    if profile.sandbox.image:
        raise HostCannotEnforce(
            "container", f"profile {profile.name} names the image {profile.sandbox.image}, and no Docker engine answers",
            "Start Docker",
        )  # fmt: skip
    return engine_named("bubblewrap"), "auto: no Docker engine answers"


def docker_may_answer() -> bool:
    """Whether there is an address to ask, without importing the SDK."""
    import os

    return "DOCKER_HOST" in os.environ or os.path.exists("/var/run/docker.sock")
