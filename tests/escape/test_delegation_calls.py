"""The way from a sandbox to the broker, in the hands of somebody hostile: whatever is said over it, and however it ends.

Who calls is known by the socket, memory and threads are bounded, and nobody else waits longer for it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.driver import Broker, Running, pids, until
from conformance.test_delegation import PRELUDE, orchestrate, with_profiles

# The client's side of the protocol (broker/guard/PROTOCOL.md), without the client.
RAW = """
import errno, fcntl, random, signal, socket, struct, time

def connect():
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect("\\0broker")
    return one

def ask(one, *words, cwd="/"):
    said = "\\0".join((cwd, "broker", *words)).encode("utf-8", "surrogateescape") + b"\\0"
    for at in range(0, len(said), 60_000):
        one.send(b"c" + said[at : at + 60_000])
    one.send(b"s")

def taken(one):
    # Until the guard has read all that was sent (SIOCOUTQ, unix(7)).
    while struct.unpack("i", fcntl.ioctl(one, 0x5411, b"\\0" * 4))[0]:
        time.sleep(0.001)

def answer(one):
    out, code = {"o": b"", "e": b""}, None
    while packet := one.recv(1 << 17):
        kind = packet[:1].decode()
        if kind == "x":
            code = packet[1]
        elif kind in out:
            out[kind] += packet[1:]
        elif kind == "i":
            one.send(b"i")
    return code, out["o"].decode(errors="replace"), out["e"].decode(errors="replace")

def call(*words, **how):
    with connect() as one:
        ask(one, *words, **how)
        return answer(one)

def tries(act):
    try:
        return act()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
"""


@pytest.fixture
def lead(broker: Broker) -> Broker:
    return with_profiles(broker)


@contextmanager
def orchestrating(broker: Broker, code: str, **how: object) -> Iterator[Running]:
    """Start the operator's task on Python code; what it says is read while it runs."""
    with broker.started("python3", "-c", PRELUDE + RAW + code, stdin=-1, **how) as running:  # type: ignore[arg-type]
        yield running


def status(pid: int, name: str) -> int:
    """A number out of /proc/PID/status."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0])


def test_whatever_a_caller_says_of_itself_it_speaks_for_its_own_task(lead: Broker) -> None:
    forged = """
ask_for = '{"profile": "no-such", "command": ["true"], "label": "root"}'
for words in (["delegate", "--profile", "no-such", "--label", "root", "--", "true"], ["delegate", "--profile", "no-such", "--", "root/7"]):
    print(call(*words, cwd="/proc/1/root")[0], flush=True)
with connect() as one:
    one.send(b"c/\\0root\\0delegate\\0--profile\\0no-such\\0--\\0root\\0")
    one.send(b"s")
    print(answer(one)[0])
"""
    lead.file("forge.py", RAW + forged)
    said, _ = orchestrate(lead, """
        say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "forge.py"))
    """)

    assert said[0]["stdout"] == "77\n77\n77\n", said
    decided = [event["task"] for event in lead.events() if event["type"] == "delegation.decided" and event["verdict"] == "deny"]
    assert decided == ["root/1"] * 3
    assert {row["of"] for row in said[0].get("denials_below", [])} == set()


def test_the_sockets_name_cannot_be_taken_and_leads_to_no_other_sandbox_nor_to_the_host(lead: Broker) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        # Whoever connects to these has left the sandbox. The first name may be somebody's already: then it is as good.
        for one, name in ((host, "\0broker"), (stream, f"\0broker-{os.getpid()}")):
            try:
                one.bind(name)
            except OSError:
                assert name == "\0broker"
            else:
                one.listen(8)
                one.settimeout(0)
        look = RAW + f"""
here = open("/proc/net/unix").read().splitlines()[1:]
squat = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
print(json.dumps([
    sum(line.endswith("@broker") for line in here), tries(lambda: squat.bind("\\0broker")),
    tries(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\\0broker-{os.getpid()}")),
    tries(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\\0parents")),
    call("denials")[0], os.readlink("/proc/self/ns/net"),
]), flush=True)
input()
"""
        lead.file("look.py", "import json, os\n" + look)
        said, _ = orchestrate(lead, RAW + """
parents = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
parents.bind("\\0parents")
parents.listen(8)
both = [start("--profile", "coder", "--trust", "trusted", "--stdin", "--stream", "--", "python3", "look.py", stdin=subprocess.PIPE)
        for _ in range(2)]
rows = [json.loads(one.stderr.readline()) for one in both]
for one in both:
    one.communicate(b"\\n")
say(rows + [[os.readlink("/proc/self/ns/net")]])
""")  # fmt: skip
        for one in (host, stream):
            with pytest.raises((BlockingIOError, OSError)):
                one.accept()

    *rows, [parents] = said[0]
    for listening, squatted, hosts, of_parent, code, _ in rows:
        assert (listening, squatted, hosts, of_parent, code) == (1, "EADDRINUSE", "ECONNREFUSED", "ECONNREFUSED", 0)
    assert len({parents, *(row[5] for row in rows)}) == 3


def test_files_of_a_parent_are_no_way_to_talk_with_its_child(lead: Broker) -> None:
    # A socket and a pipe that lie in the parent's view lie in the child's too: as names only.
    lead.file("talk.py", "import json, os\n" + RAW + """
print(json.dumps([
    tries(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("door")),
    tries(lambda: os.open("pipe", os.O_WRONLY | os.O_NONBLOCK)),
]), flush=True)
""")  # fmt: skip
    said, _ = orchestrate(lead, RAW + """
door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
door.bind("door")
door.listen(1)
os.mkfifo("pipe")
reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
say(delegate("--profile", "coder", "--trust", "trusted", "--", "python3", "talk.py"))
""")  # fmt: skip
    assert json.loads(said[0]["stdout"])[0] in ("ECONNREFUSED", "EACCES", "ENXIO"), said
    assert json.loads(said[0]["stdout"])[1] in ("ENXIO", "EACCES"), said


def test_descriptors_that_are_sent_along_arrive_nowhere(lead: Broker) -> None:
    code = """
held = [os.memfd_create("smuggled") for _ in range(200)]
for _ in range(20):
    with connect() as one:
        for piece in (b"c/\\0broker\\0denials\\0", b"s"):
            socket.send_fds(one, [piece], held)
        say(answer(one)[0])
say("sent")
input()
"""
    with orchestrating(lead, code) as running:
        running.read_until(b'"sent"\n')
        inside = set(lead.inside())
        outside = [pid for pid in pids() if pid == running.pid or parent_is(pid, running.pid)]
        holders = {pid for pid in {*inside, *outside} if holds(pid, "smuggled")}
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in holders}
        running._stdin = b"\n"
        done = running.finish()

    assert done.code == 0, done.err
    assert done.out.count(b"0\n") == 20
    assert names == {"python3"}, names
    assert running.pid not in holders


def parent_is(pid: int, wanted: int) -> bool:
    try:
        return status(pid, "PPid") == wanted
    except OSError:
        return False


def holds(pid: int, text: str) -> bool:
    try:
        return any(text in os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def test_callers_that_leave_take_their_work_with_them_or_wait_for_a_place(lead: Broker) -> None:
    # Each question keeps the broker busy for seconds, and a caller that is gone makes room for the next at the guard's.
    code = """
input()
say("ready")
input()
for process in range(8):
    if not os.fork():
        for number in range(12):
            with connect() as one:
                ask(one, "can-i", "--", "rm", *["a"] * 30_000)
                taken(one)
        os._exit(0)
for process in range(8):
    os.wait()
say(call("can-i", "--", "ls")[0])
say(subprocess.run(["/bin/echo", "through the gate"], capture_output=True).stdout.decode())
"""
    with orchestrating(lead, code) as running:
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")  # heard, so each of the run's own threads is there: the one that hands this in as well
        running.process.stdin.flush()
        running.read_until(b'"ready"\n')
        before, most = status(running.pid, "Threads"), 0
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        over = threading.Event()

        def look() -> None:
            nonlocal most
            while not over.wait(0.02):
                most = max(most, status(running.pid, "Threads"))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            running.read_until(b"through the gate")
        finally:
            over.set()
            looking.join()
        done = running.finish()

    assert done.code == 0, done.err
    assert most <= before + 16
    assert done.out.splitlines()[1] == b"0"


def test_nonsense_on_the_socket_ends_the_call_and_nothing_else(lead: Broker) -> None:
    said, _ = orchestrate(lead, RAW + """
chance = random.Random(7)
PIECES = [b"c", b"s", b"i", b"x\\0", b"o", b"", b"c/\\0broker\\0", b"c/\\0broker\\0denials\\0", b"c\\0", b"c" + b"\\xff\\0" * 9, b"s!",
          b"c/\\0broker\\0delegate\\0--profile\\0no\\0--\\0true\\0", b"i" * 65_536, b"c" * 65_536, b"c" + b"a\\0" * 30_000, b"\\0"]
ends = {}
for number in range(600):
    with connect() as one:
        one.settimeout(0.05)
        try:
            for _ in range(chance.randrange(1, 6)):
                piece = chance.choice(PIECES)
                if chance.random() < 0.3:
                    piece = piece[:1] + chance.randbytes(chance.randrange(200))
                one.send(piece)
            how = chance.randrange(4)
            if how == 0:
                one.shutdown(socket.SHUT_WR)
            elif how == 1:
                one.shutdown(socket.SHUT_RD)
            elif how == 2:
                answer(one)
        except OSError as error:
            ends[type(error).__name__] = ends.get(type(error).__name__, 0) + 1
say(call("can-i", "--", "ls")[0])
say(call("denials", "--json")[0])
say(call("no-such-verb")[0])
""")  # fmt: skip
    assert said == [0, 0, 64]
    assert lead.verified()


def test_a_caller_may_die_at_every_stage_of_a_delegation(lead: Broker) -> None:
    said, done = orchestrate(lead, RAW + """
chance = random.Random(11)
for number in range(40):
    one = start("--profile", "worker", "--stdin", "--stream", "--", "bash", "-c", "echo x > made-$0; cat; sleep 60", str(number),
                stdin=subprocess.PIPE)
    time.sleep(chance.random() * 0.08)  # the moment is the point, whatever is being done in it
    one.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))
    if number % 3:
        one.kill()
        one.wait()
    else:
        one.stdin.close()
        one.kill()
        one.wait()
deadline = time.monotonic() + 60
while (last := delegate("--profile", "worker", "--", "true"))["status"] == "budget" and time.monotonic() < deadline:
    pass
say(last["status"])
say(sorted(os.listdir()))
""", profile=lead.profile("wide", delegate={"tasks": 10_000}))  # fmt: skip

    assert said == ["finished", []]
    ended = [event for event in lead.events() if event["type"] == "task.finished" and event["task"] != "root"]
    begun = [event for event in lead.events() if event["type"] == "delegation.decided" and event["verdict"] == "allow"]
    assert len(ended) == len(begun)
    assert done["status"] == "finished"
    assert lead.verified()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_caller_that_does_not_read_holds_up_its_own_child_and_no_memory(lead: Broker, stopped: bool) -> None:
    lead.file("much.py", "import os\nfor _ in range(1600): os.write(1, b'x' * 65536)\nopen('over', 'w')\n")
    code = f"""
one = start("--profile", "coder", "--trust", "trusted", "--stream", "--", "python3", "much.py")
os.read(one.stderr.fileno(), 1)
if {stopped}:
    one.send_signal(signal.SIGSTOP)
say("it writes")
say(call("can-i", "--", "ls")[0])
say(delegate("--profile", "worker", "--", "echo", "another")["stdout"])
input()
one.send_signal(signal.SIGCONT)
out, err = one.communicate()
found = json.loads(out)
say([len(err) + 1, found["stdout_bytes"], len(found["stdout"]) < 100_000, found["status"]])
"""
    with orchestrating(lead, code) as running:
        running.read_until(b'"it writes"\n')
        before = status(running.pid, "VmRSS")
        running.read_until(b"another")
        grown = status(running.pid, "VmRSS") - before
        running._stdin = b"\n"
        done = running.finish()

    assert done.code == 0, done.err
    assert grown < 32 * 1024  # KiB, of a hundred MiB
    assert json.loads(done.out.splitlines()[-1]) == [1600 * 65536, 1600 * 65536, True, "finished"]


def test_sixteen_callers_at_once_get_each_the_answer_to_its_own_question(lead: Broker) -> None:
    said, _ = orchestrate(lead, RAW + """
readers = []
for number in range(16):
    reader, writer = os.pipe()
    readers.append(reader)
    if not os.fork():
        for round in range(20):
            mark = f"of-{number}-{round}"
            code, out, _ = call("can-i", "--json", "--", "echo", mark)
            if (code, mark in out) != (0, True):
                os.write(writer, f"{mark}: {code} {out}".encode())
        os._exit(0)
    os.close(writer)
say([os.read(reader, 4096).decode() for reader in readers])
""")  # fmt: skip
    assert said[0] == [""] * 16


def test_a_thousand_connections_are_closed_or_answered_and_the_next_is_served(lead: Broker) -> None:
    said, _ = orchestrate(lead, RAW + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held, refused = [], 0
for number in range(1000):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        one.connect("\\0broker")
        held.append(one)
    except OSError:
        refused += 1
        one.close()
say(len(held) <= 64)
say(subprocess.run(["/bin/echo", "through the gate"], capture_output=True).stdout.decode())
for one in held:
    one.close()
say(call("can-i", "--", "ls")[0])
""")  # fmt: skip
    assert said == [True, "through the gate\n", 0]


def test_a_flood_of_refusals_is_counted_and_fills_neither_memory_nor_disk(lead: Broker) -> None:
    lead.profile("wide", delegate={"tasks": 10_000})
    code = """
say("ready")
input()
long = ["x" * 200] * 500
for number in range(300):
    assert call("delegate", "--profile", "no-such", "--", *long)[0] == 77
for number in range(10):
    assert delegate("--profile", "worker", "--", "true")["status"] == "finished"
say("over")
input()
"""
    with orchestrating(lead, code, profile="wide") as running:
        running.read_until(b'"ready"\n')
        before = status(running.pid, "VmRSS")
        assert running.process.stdin is not None
        running.process.stdin.write(b"\n")
        running.process.stdin.flush()
        running.read_until(b'"over"\n')
        grown = status(running.pid, "VmRSS") - before
        running._stdin = b"\n"
        done = running.finish()

    assert done.code == 0, done.err
    assert grown < 48 * 1024
    [row] = [row for row in done["denials"] if row["tool"] == "delegate"]
    assert row["count"] == 300
    assert lead.journals()[-1].stat().st_size < 2 << 20
    assert lead.verified()
    until(lambda: not lead.inside(), "the end of all")
