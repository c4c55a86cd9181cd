"""deepagents (LangChain): `BrokerBackend`, where its agents keep their files and run their commands (docs/integrations.md).

In: shell texts and files. Out: what its own backends would return; a refusal is text that the model reads, with exit code 126.
"""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from types import TracebackType
from typing import Literal, Self

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    LsResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox

from broker.api.values import Outcome
from broker.decide.profile import Profile
from broker.errors import BrokerError
from broker.integrations.place import Place, Settings, error_of

__all__ = ["BrokerBackend"]

KEPT = 1 << 20  # bytes of each stream
REPLACES = tuple(map(int, version("deepagents").split(".")[:2])) >= (0, 7)  # before, `write` was for new files only
SECONDS = 30 * 60  # for a command without a limit of its own


class BrokerBackend(BaseSandbox):
    """A sandbox without a network, open until it is closed; everything in it is judged by a profile and recorded.

        with BrokerBackend("builder", workspace=".", land=True) as backend:
            agent = create_deep_agent(model=…, backend=backend)

    `profile` is a name, a file (PATH, or PATH:NAME), or what define_profile returns. Without a `workspace` there is an
    empty one; of a given one the files are seen, and its changes are thrown away at the end, unless `land` is true: then
    those land that the profile permits. Raises BrokerError where there can be no sandbox.
    """

    def __init__(
        self, profile: str | Profile = "default", workspace: str | os.PathLike[str] | None = None, *, land: bool = False,
        engine: Literal["auto", "docker", "bubblewrap"] = "auto", image: str = "", trust: Literal["trusted", "untrusted"] = "trusted",
        profile_dirs: tuple[str, ...] = (), state_dir: str | os.PathLike[str] | None = None, seconds: float = SECONDS,
    ) -> None:  # fmt: skip
        """Open the sandbox. `seconds` is for a command that has no limit of its own."""
        self._seconds = seconds
        self._place = Place(Settings(profile, workspace, land, engine, image, trust, profile_dirs, state_dir))

    @property
    def id(self) -> str:
        """The run's name, for `broker events`."""
        return self._place.broker.run_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close(land=error is None)

    def close(self, *, land: bool = True) -> Outcome:
        """End it. Its changes land if that was asked for, and not when `land` is false."""
        return self._place.close(land=land)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell text in the workspace. 0 seconds are no limit."""
        seconds = self._seconds if timeout is None else timeout or None
        try:
            result = self._place.run(["bash", "-c", command], seconds=seconds, keep=KEPT)
        except (BrokerError, OSError) as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=126)
        output = result.stdout + result.stderr
        if result.status not in ("finished", "signalled"):
            hints = [denial.hint for denial in result.denials if denial.reason == result.reason and denial.hint][:1]
            output += " ".join([f"broker: {result.status}: {result.reason}", *hints])
        return ExecuteResponse(
            output=output, exit_code=result.exit_code, truncated=max(result.stdout_bytes, result.stderr_bytes) > KEPT
        )

    # These two would run Python in the sandbox, which a profile that runs no code refuses, and `ls` would list nothing then.

    def ls(self, path: str) -> LsResult:
        """List a folder with `find`."""
        words = ["find", "-H", os.path.join("/", path), "-mindepth", "1", "-maxdepth", "1", "-printf", "%y%p\\0"]
        try:
            found = self._place.run(words, seconds=self._seconds, keep=KEPT)
        except (BrokerError, OSError) as error:
            return LsResult(error=f"Error: {error}")
        if found.exit_code or found.stdout_bytes > KEPT:
            return LsResult(error=f"Error: {found.reason or found.stderr.strip() or 'there is too much in it'}")
        return LsResult(entries=[{"path": one[1:], "is_dir": one[0] == "d"} for one in sorted(found.stdout.split("\0")) if one])

    async def als(self, path: str) -> LsResult:
        """List a folder."""
        return await asyncio.to_thread(self.ls, path)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a whole file, with the folders above it."""
        if not os.path.isabs(file_path):
            return WriteResult(error=f"Error: {file_path!r} is no absolute path")
        try:
            result = self._place.write(file_path, content, new=not REPLACES)
        except BrokerError as failure:
            return WriteResult(error=f"Error: {failure}")
        if result.status == "changed":
            return WriteResult(error=f"Error: File already exists: {file_path!r}")
        error = _word(error_of(result, file_path))
        return WriteResult(error=f"Failed to write file '{file_path}': {error}") if error else WriteResult(path=file_path)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Write a whole file."""
        return await asyncio.to_thread(self.write, file_path, content)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each by itself, with the folders above it."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def _write(self, path: str, content: bytes) -> str | None:
        if not os.path.isabs(path):
            return "invalid_path"
        try:
            return _word(error_of(self._place.write(path, content), path))
        except BrokerError as error:
            return str(error)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, each by itself."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> FileDownloadResponse:
        if not os.path.isabs(path):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            result = self._place.read(path)
        except BrokerError as error:
            return FileDownloadResponse(path=path, error=str(error))
        if result.size > len(result.data):
            return FileDownloadResponse(path=path, error=f"it has {result.size} bytes, and {len(result.data)} are read at most")
        return FileDownloadResponse(path=path, content=result.data if result.ok else None, error=_word(error_of(result, path)))


def _word(error: OSError | None) -> str | None:
    """Return deepagents' word for an error, or ours where it has none. A refusal says why."""
    match error:
        case None:
            return None
        case FileNotFoundError():
            return "file_not_found"
        case IsADirectoryError():
            return "is_directory"
        case PermissionError() if not str(error.strerror).startswith("denied: "):
            return "permission_denied"
        case NotADirectoryError():
            return "invalid_path"
        case _:
            return str(error.strerror)
