"""multiprocessing by every start method, with what it shares; process pools; process groups and signals."""

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing import shared_memory


def square(number: int) -> int:
    return number * number


def add(queue: multiprocessing.Queue, lock: multiprocessing.Lock, total: multiprocessing.Value) -> None:
    with lock:
        total.value += 1
    queue.put(os.getppid() > 0)


def fill(name: str) -> None:
    block = shared_memory.SharedMemory(name=name)
    block.buf[:5] = b"hello"
    block.close()


def by_method(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(4) as pool:
        print(method, "pool", sum(pool.map(square, range(200))))
    queue, lock, total = context.Queue(), context.Lock(), context.Value("i", 0)
    workers = [context.Process(target=add, args=(queue, lock, total)) for _ in range(8)]
    for worker in workers:
        worker.start()
    print(method, "queue", all(queue.get(timeout=60) for _ in workers))
    for worker in workers:
        worker.join()
    print(method, "value", total.value, sorted({worker.exitcode for worker in workers}))
    with context.Manager() as manager:
        shared = manager.dict()
        shared["a"] = 1
        print(method, "manager", dict(shared))
    block = shared_memory.SharedMemory(create=True, size=64)
    writer = context.Process(target=fill, args=(block.name,))
    writer.start()
    writer.join()
    print(method, "shared memory", bytes(block.buf[:5]))
    block.close()
    block.unlink()


def main() -> None:
    for method in ("fork", "spawn", "forkserver"):
        by_method(method)
    with concurrent.futures.ProcessPoolExecutor(max_workers=4) as pool:
        print("executor", sum(pool.map(square, range(100), chunksize=5)))
    sleeper = subprocess.Popen(["sleep", "100"], start_new_session=True)
    os.killpg(sleeper.pid, signal.SIGTERM)
    print("killed", sleeper.wait())
    try:
        subprocess.run(["sleep", "100"], check=False, timeout=0.2)
    except subprocess.TimeoutExpired:
        print("timed out")
    spawned = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], os.environ)
    print("posix_spawn", os.waitstatus_to_exitcode(os.waitpid(spawned, 0)[1]))
    masked = subprocess.run(["sh", "-c", "umask"], preexec_fn=lambda: os.umask(0o077), check=True, capture_output=True)
    print("preexec", masked.stdout)
    try:
        subprocess.run(["no-such-program"], check=False)
    except FileNotFoundError as error:
        print("not found", error.errno)
    sys.exit(5)


if __name__ == "__main__":
    main()
