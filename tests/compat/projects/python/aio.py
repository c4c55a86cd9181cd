"""asyncio: subprocesses at once, their streams, signals, timeouts; a server on the loopback interface."""

import asyncio
import signal
import sys


async def echo(number: int) -> str:
    process = await asyncio.create_subprocess_exec(
        "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(str(number).encode())
    return out.decode()


async def serve() -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello over loopback\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line


async def main() -> None:
    print(",".join(await asyncio.gather(*(echo(number) for number in range(30)))))
    shell = await asyncio.create_subprocess_shell("exit 9")
    print("shell", await shell.wait())
    sleeper = await asyncio.create_subprocess_exec("sleep", "100")
    sleeper.send_signal(signal.SIGINT)
    print("signal", await sleeper.wait())
    slow = await asyncio.create_subprocess_exec("sleep", "100")
    try:
        await asyncio.wait_for(slow.wait(), 0.2)
    except TimeoutError:
        slow.kill()
        print("timeout", await slow.wait())
    print("server", await serve())
    ticks = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, ticks.set)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    await asyncio.wait_for(ticks.wait(), 30)
    print("timer")


asyncio.run(main())
sys.exit(4)
