"""A Docker image with agents in it, built from the recipe of docs/agents.md, and kept by the engine under the recipe's digest."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from installed import PACKAGES, cache

from broker.enforce.images import image_for

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
RECIPES = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
BUILD_SECONDS = 600
# Between this host and the registries may stand a proxy with an authority of its own: then the host says so.
AUTHORITIES = next((found for name in ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE") if (found := os.environ.get(name))), "")
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"


def agents_image(*, pypi: bool = False) -> str:
    """Return the tag of the page's image; with `pypi`, of the one that builds on it. Built when it is not there."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        base = image_for("node")
        assert base is not None
        made = _built(RECIPES[0], f"BASE={_trusting(base)}")
        return _built(RECIPES[1], f"BASE={made}") if pypi else made


def _trusting(base: str) -> str:
    if not AUTHORITIES:
        return base
    text = f"ARG BASE\nFROM ${{BASE}}\nCOPY ca.crt {TRUSTED}\nENV NODE_EXTRA_CA_CERTS={TRUSTED} PIP_CERT={TRUSTED}\n"
    return _built(text, f"BASE={base}", Path(AUTHORITIES))


def _built(recipe: str, argument: str, authorities: Path | None = None) -> str:
    for package in PACKAGES.values():  # the page names no versions: a failing test is to be about us
        version = f"{package.name}@{package.version}" if package.registry == "npm" else f"{package.name}=={package.version}"
        recipe = re.sub(rf"(?<=\s){re.escape(package.name)}(?=\s)", version, recipe)
    content = authorities.read_bytes() if authorities else b""
    tag = f"broker-tests/agents:{hashlib.sha256(f'{recipe}{argument}'.encode() + content).hexdigest()[:12]}"
    if image_for(tag) is None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "Dockerfile").write_text(recipe)
            if authorities:
                shutil.copyfile(authorities, Path(folder, "ca.crt"))
            words = ["docker", "build", "--network", "host", "--build-arg", argument, "--tag", tag, folder]
            done = subprocess.run(words, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return tag


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        print(agents_image(pypi="--pypi" in sys.argv))
