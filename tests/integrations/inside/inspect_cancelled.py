"""Cancel what runs in an inspect_ai sandbox, and use the sandbox on; then its ends. Prints what it saw."""

from __future__ import annotations

import os
import sys

import anyio
from inspect_ai.util import SandboxUnavailableError, SandboxUserUnsupportedError

from broker.integrations.inspect_ai import BrokerSandboxConfig, BrokerSandboxEnvironment


async def main() -> None:
    config = BrokerSandboxConfig(profile=os.environ["PROFILE"], workspace=os.environ["WORKSPACE"], land=True, engine="bubblewrap")
    environments = await BrokerSandboxEnvironment.sample_init("task", config, {})
    sandbox = environments["default"]
    with anyio.move_on_after(1):
        await sandbox.exec(["sleep", "1000"])
    while "sleep 1000" in (await sandbox.exec(["ps", "ax"])).stdout:  # noqa: ASYNC110 - a process of the sandbox is waited for
        await anyio.sleep(0.05)
    print("ended")
    try:
        await sandbox.exec(["true"], user="root")
    except SandboxUserUnsupportedError as error:
        print("root:", error)
    try:
        await sandbox.connection()
    except NotImplementedError as error:
        print("connection:", error)
    await sandbox.write_file("landed.txt", "yes")
    interrupted = sys.argv[1] == "interrupted"
    await BrokerSandboxEnvironment.sample_cleanup("task", config, environments, interrupted)
    try:
        await sandbox.exec(["true"])
    except SandboxUnavailableError as error:
        print("unavailable:", error)


if __name__ == "__main__":
    anyio.run(main, backend=os.environ.get("BACKEND", "asyncio"))
