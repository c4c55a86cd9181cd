"""inspect_ai: `sandbox="broker"`, and an approver that says what a profile says (docs/integrations.md).

Found by inspect_ai through its entry point. In: programs and files of a sample. Out: what its own providers would return.
A refusal is a PermissionError that says why; the sample goes on, and the model reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import anyio
import anyio.to_thread
from inspect_ai.approval import Approval, Approver, approver
from inspect_ai.model import ChatMessage
from inspect_ai.tool import ToolCall, ToolCallView
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from broker.api.values import FileResult, RunResult
from broker.errors import BrokerError, UsageError
from broker.integrations.place import OVER, Place, Settings, error_of, profile_of
from broker.stop import Stop

__all__ = ["BrokerSandboxConfig", "BrokerSandboxEnvironment", "broker_approver"]

T = TypeVar("T")
USER = "agent"  # what the sandbox's one user is called inside


class BrokerSandboxConfig(BaseModel):
    """What a sample's sandbox is. A text in its place (`("broker", "builder")`) is the profile.

    `profile` is a name or a file (PATH, or PATH:NAME). `workspace` is a folder that every sample sees as it is, and changes
    for itself; without one, a sample has an empty folder. `land`: what the profile permits lands there when a sample ends.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: str = "default"
    workspace: str | None = None
    land: bool = False
    engine: Literal["auto", "docker", "bubblewrap"] = "auto"
    image: str = ""
    trust: Literal["trusted", "untrusted"] = "trusted"
    profile_dirs: tuple[str, ...] = ()
    state_dir: str | None = None


def _settings(config: SandboxEnvironmentConfigType | None) -> Settings:
    match config:
        case None:
            return Settings()
        case str():  # inspect_ai makes it a path below the task's folder, for files of configuration
            name = os.path.basename(config)
            return Settings(profile=config if "." in name else name)
        case BrokerSandboxConfig():
            return Settings(**{name: getattr(config, name) for name in BrokerSandboxConfig.model_fields})
        case _:
            raise UsageError(
                f"the sandbox `broker` takes a profile's name or a BrokerSandboxConfig, not {type(config).__name__}. A compose "
                "file or a Dockerfile says nothing about what may be done: write a profile, and name the image in it"
            )


async def _in_thread(work: Callable[[Stop], T]) -> T:
    """Do something on a thread, under asyncio or trio. A cancellation ends what it started, and does not wait for the rest."""
    stop = Stop()
    try:  # a limiter of its own: the common one has forty places, and a program may take hours
        return await anyio.to_thread.run_sync(work, stop, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
    except anyio.get_cancelled_exc_class():
        stop.ask()
        raise


@sandboxenv(name="broker")
class BrokerSandboxEnvironment(SandboxEnvironment):
    """A sample's sandbox: no network, everything judged by a profile and recorded."""

    def __init__(self, place: Place) -> None:
        """`place` is open."""
        super().__init__()
        self.place = place

    @classmethod
    def default_concurrency(cls) -> int | None:
        """As many samples as inspect_ai's own local containers."""
        return 2 * (os.cpu_count() or 1)

    def default_polling_interval(self) -> float:
        """A program in a running sandbox starts within milliseconds."""
        return 0.2

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration from a log, or from a task that was written as data."""
        return BrokerSandboxConfig(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Refuse a configuration that cannot work before any sample starts."""
        profile_of(_settings(config))

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open a sandbox for a sample."""
        settings = _settings(config)
        return {"default": cls(await _in_thread(lambda stop: Place(settings, stop)))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment], interrupted: bool,
    ) -> None:  # fmt: skip
        """End it. The changes of a sample that was interrupted never land."""
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                place = environment.as_type(cls).place
                await _in_thread(lambda _stop, place=place: place.close(land=not interrupted))  # type: ignore[misc]

    async def exec(
        self, cmd: list[str], input: str | bytes | None = None, cwd: str | None = None,
        env: dict[str, str] | None = None, user: str | None = None, timeout: int | None = None,
        timeout_retry: bool = True, concurrency: bool = True,
    ) -> ExecResult[str]:  # fmt: skip
        """Run a program. One that ran out of time is not run again: a second time would not be the same."""
        if user is not None and user != USER:
            raise SandboxUserUnsupportedError(
                f"the sandbox has one user, {USER!r}, without any privilege: nothing in it can run as {user!r}. What a root "
                "would prepare belongs into the profile's image"
            )
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            result = await _in_thread(
                lambda stop: self.place.run(cmd, stop, cwd=cwd or "", env=env, given=input, seconds=timeout, keep=most)
            )
        except BrokerError as error:
            raise SandboxUnavailableError(str(error)) from error
        for text, size in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
            if size > most:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text)
        return _exec_result(result)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a whole file, with the folders above it."""
        _check(await self._file(lambda stop: self.place.write(file, contents, stop)), file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a whole file."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        result = await self._file(lambda stop: self.place.read(file, stop, most=most))
        _check(result, file)
        if result.size > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return result.data.decode("utf-8") if text else result.data

    async def _file(self, work: Callable[[Stop], FileResult]) -> FileResult:
        try:
            return await _in_thread(work)
        except BrokerError as error:
            raise SandboxUnavailableError(str(error)) from error

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Refuse: a shell that came in from outside would be judged by nobody."""
        raise NotImplementedError(
            "nobody logs in to a sandbox of broker: what came in from outside would be judged by nobody. Watch the sample with: "
            f"broker events --follow {self.place.broker.run_id}"
        )


def _exec_result(result: RunResult) -> ExecResult[str]:
    match result.status:
        case "finished" | "signalled":
            return ExecResult(result.exit_code == 0, result.exit_code, result.stdout, result.stderr)
        case "timeout":
            raise TimeoutError(f"{result.argv[0]}: {result.reason}")
        case "denied":
            hint = next((f" {denial.hint}" for denial in result.denials if denial.reason == result.reason and denial.hint), "")
            raise PermissionError(f"denied: {result.reason}{hint}")
        case "failed" if result.exit_code == 126:
            raise PermissionError(f"{result.argv[0]}: {result.reason}")
        case status if status in OVER:
            raise SandboxUnavailableError(f"the sandbox has ended: {result.reason}")
        case _:
            return ExecResult(success=False, returncode=result.exit_code, stdout=result.stdout, stderr=f"{result.argv[0]}: {result.reason}\n")


def _check(result: FileResult, file: str) -> None:
    if (error := error_of(result, file)) is not None:
        raise error


# Approval

_TEXTS = {"bash": ("command", "cmd"), "python": ("code",)}
_EDITS = frozenset({"create", "str_replace", "insert", "undo_edit"})


@approver(name="approver")
def broker_approver(
    profile: str = "default", workspace: str = ".", trust: Literal["trusted", "untrusted"] = "trusted",
) -> Approver:  # fmt: skip
    """Approve what a profile permits, reject what it refuses, and escalate what it would ask about.

    For tools that run in any sandbox. The tools bash, python and text_editor are understood; every other one is escalated,
    because nobody can say what it does. It judges what is written, not what that starts: a sandbox of broker judges both.
    """
    from broker.decide.envelope import Envelope
    from broker.decide.trust import Trust
    from broker.decide.verdict import Allow, Deny
    from broker.profiles.judge import context_in, judge
    from broker.profiles.load import load_any

    folder = str(Path(workspace).absolute())
    envelope = Envelope(profile=load_any(profile, workspace=folder), trust=Trust.parse(trust))
    context = context_in(folder)

    async def approve(message: str, call: ToolCall, view: ToolCallView, history: list[ChatMessage]) -> Approval:
        operation = _operation(call, folder)
        if operation is None:
            return Approval(decision="escalate", explanation=f"Profile {envelope.profile.name} cannot say what the tool {call.function} does.")
        judged = judge(operation, envelope, interactive=True, context=context)
        facts = {"effects": [risk.label for risk in sorted(judged.assessment.effects)], "rule": judged.verdict.rule}
        match judged.verdict:
            case Allow():
                return Approval(decision="approve", explanation=f"Profile {envelope.profile.name} permits it.", metadata=facts)
            case Deny() as denial:
                return Approval(decision="reject", explanation=f"{denial.reason} {denial.hint}".strip(), metadata=facts)
            case question:
                return Approval(decision="escalate", explanation=question.reason, metadata=facts)

    return approve


def _operation(call: ToolCall, folder: str) -> Any:
    """Return what a tool call does, None if nobody can say."""
    from broker.request.operation import Exec, FileAction, FileChange, FileRead, ShellText

    args = call.arguments
    text = next((args[name] for name in _TEXTS.get(call.function, ()) if isinstance(args.get(name), str)), None)
    if text is not None:
        return ShellText(text=text) if call.function == "bash" else Exec(argv=("python3", "-c", text))
    command, path = args.get("command"), args.get("path")
    if call.function != "text_editor" or not isinstance(path, str) or not path or "\0" in path:
        return None
    where = os.path.normpath(os.path.join(folder, path))
    if command == "view":
        return FileRead(path=where)
    return FileChange(action=FileAction.WRITE, path=where) if command in _EDITS else None
