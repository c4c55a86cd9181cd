"""The small `broker` inside starts whatever the ceiling is: it must do nothing that the ceiling does not permit."""

from __future__ import annotations

import os

import pytest

from conformance.driver import Broker
from conformance.test_delegation import orchestrate

# A start under a name of the caller's choice, and what came of it: the errno's name, or exit code and output.
START = """
import errno
CLIENT = "/run/broker/bin/broker"

def call(argv, path=CLIENT, **how):
    try:
        done = subprocess.run(argv, executable=path, capture_output=True, **how)
    except OSError as error:
        return errno.errorcode[error.errno]
    return [done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")]
"""


@pytest.fixture
def careful(for_somebody: Broker) -> Broker:
    for_somebody.profile("careful", max_risk="safe", effects={})
    for_somebody.profile("careful-direct", max_risk="safe", effects={}, sandbox={"workspace": "direct"})
    for_somebody.profile("writer", max_risk="local_write", effects={})
    return for_somebody


@pytest.mark.parametrize("profile", ["careful", "careful-direct"])
def test_the_client_writes_no_file_for_a_task_that_may_only_look(careful: Broker, profile: str) -> None:
    careful.file("there", "as it was\n")
    said, done = orchestrate(careful, START + """
say([call([name, "file", *words], input=b"planted")
     for name in ("broker", "./broker", "/any/where/broker")
     for words in (["write", "new"], ["write", "--parents", "a/b"], ["write", "there"], ["write", "--new", "/tmp/x"],
                   ["write", "--", "there"], ["write", os.getcwd() + "/there"])])
say([sorted(os.listdir()), open("there").read(), os.path.exists("/tmp/x")])
say(call(["broker", "file", "read", "there"]))
""", profile=profile)  # fmt: skip

    attempts, left, read = said
    assert set(attempts) == {"EACCES"}
    assert left == [["there"], "as it was\n", False]
    assert read[0] == 0
    assert read[1].endswith("as it was\n")
    assert (careful.workspace / "there").read_text() == "as it was\n"
    assert os.listdir(careful.workspace) == ["there"]
    assert {row["class"] for row in done["denials"]} == {"local_write"}


def test_the_client_writes_what_the_ceiling_permits_and_no_protected_path(careful: Broker) -> None:
    said, _ = orchestrate(careful, START + """
say(call(["broker", "file", "write", "new"], input=b"fine"))
say(call(["broker", "file", "write", "--parents", ".github/workflows/x.yml"], input=b"on: push"))
say(call(["broker", "file", "write", "../workspace/.vscode/tasks.json", "--parents"], input=b"{}"))
""", profile="writer")  # fmt: skip

    assert said[0] == [0, "", ""]
    assert said[1] == "EACCES"
    assert said[2] != [0, "", ""]
    assert os.listdir(careful.workspace) == ["new"]


def test_the_clients_file_starts_as_nothing_else(careful: Broker) -> None:
    # The same program is the guard, under another name: it would take orders from whoever holds the other end.
    said, done = orchestrate(careful, START + """
for argv in (["guard", "--fd", "0"], ["guard", "--connect", "/tmp/x"], ["Broker", "--fd", "0"], ["broker ", "--help"], [""]):
    say(call(argv))
say(call(["Broker", "--help"], path="/run/broker/guard"))
say(call(["guard", "--fd", "0"], path=f"/proc/{os.getpid()}/root/run/broker/bin/broker"))
say(call(["broker", "--help"])[0])
""", profile="careful")  # fmt: skip

    assert said[:-1] == ["EACCES"] * 7
    assert said[-1] == 0
    assert {row["rule"] for row in done["denials"]} == {"broker.guard"}


# A broker of the caller's own, for a guard of the caller's own (broker/guard/PROTOCOL.md).
OWN_GUARD = """
import shutil, socket, struct

def texts(*words):
    return struct.pack("<I", len(words)) + b"".join(text(word) for word in words)

def text(word):
    return struct.pack("<I", len(word)) + word.encode()

def number(packet, at):
    return errno.errorcode[struct.unpack_from("<I", packet, at)[0]]

def says(packet):
    match packet[:1]:
        case b"\\x0c": return ["fatal", packet[12:-4].decode(), number(packet, len(packet) - 4)]
        case b"\\x04": return ["failed", packet[16:].decode(), number(packet, 8)]
        case _: return {1: "hello", 2: "ready", 3: "spawned"}.get(packet[0], packet[0])

def commands(program, *mounts):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(20)
    running = subprocess.Popen(["guard", "--fd", str(theirs.fileno()), *mounts], executable=program, pass_fds=[theirs.fileno()])
    theirs.close()
    heard = [says(ours.recv(1 << 18))]
    if heard == ["hello"]:
        ours.send(struct.pack("<HHI", 64, 0, 0) + struct.pack("<IIIIQI", 8 | 4, 20_000, 0, 0, 0, 0) + texts("rwcxd\\0/")
                  + texts() * 4 + text("/bin/true") + text("") + texts() * 2)
        spawn = struct.pack("<HHIIII", 65, 0, 1, 0, 0, 0) + text("/") + texts("/usr/bin/curl", "--version") + texts("PATH=/usr/bin")
        socket.send_fds(ours, [spawn], [0, 1, 2])
        heard += [says(ours.recv(1 << 18)) for _ in range(2)]
    ours.close()
    running.wait()
    return heard
"""


def test_a_copy_of_the_guard_commands_nobody(for_somebody: Broker) -> None:
    # Under a name of the task's own it is a program like any other: started by a task that may run code, with no rights more.
    said, _ = orchestrate(for_somebody, START + OWN_GUARD + """
os.symlink(CLIENT, "/tmp/link")
say(call(["guard", "--fd", "0"], path="/tmp/link"))
shutil.copyfile(CLIENT, "/tmp/mine")
os.chmod("/tmp/mine", 0o755)
say(commands("/tmp/mine"))
say(commands("/tmp/mine", "--overlay", "/usr", "/tmp", "", ""))
""", profile="any")  # fmt: skip

    link, alone, mounting = said
    assert link == "EACCES"
    assert alone == ["hello", "ready", ["failed", "ptrace", "EPERM"]]
    assert mounting == [["fatal", "user namespace", "EPERM"]]


def test_a_broker_of_the_agents_own_is_judged_like_any_program(careful: Broker) -> None:
    careful.file("broker", "#!/bin/sh\necho mine\n", 0o755)
    careful.file("bin/broker", "#!/bin/sh\necho mine\n", 0o755)
    said, _ = orchestrate(careful, START + """
for path in ("./broker", "bin/broker", os.path.abspath("broker")):
    for argv in (["broker", "--help"], ["broker", "can-i", "--", "true"], ["/run/broker/bin/broker", "profiles"]):
        say(call(argv, path=path))
os.environ["PATH"] = os.path.abspath("bin") + ":" + os.environ["PATH"]
try:
    say(subprocess.run(["broker", "--help"], capture_output=True).stdout.decode()[:6])
except OSError as error:
    say(errno.errorcode[error.errno])
""", profile="careful")  # fmt: skip

    assert said[:9] == ["EACCES"] * 9
    assert said[9] in ("EACCES", "usage:")  # along PATH the next one of that name is the client itself


def test_the_client_cannot_be_linked_copied_over_or_made_to_load_anything(careful: Broker) -> None:
    said, _ = orchestrate(careful, START + """
for act in (
    lambda: os.link(CLIENT, "broker"), lambda: os.link("/run/broker/guard", "broker"), lambda: os.rename(CLIENT, "broker"),
    lambda: os.unlink(CLIENT), lambda: open(CLIENT, "r+b"), lambda: os.symlink("/bin/true", "/run/broker/bin/x"),
    lambda: os.chmod(CLIENT, 0o777), lambda: os.truncate(CLIENT, 0), lambda: open("/run/broker/denials.jsonl", "a"),
    lambda: os.mkdir("/run/broker/x"), lambda: os.utime(CLIENT),
):
    try:
        act()
        say("done")
    except OSError as error:
        say(errno.errorcode[error.errno])
loads = {"LD_PRELOAD": "/tmp/x.so", "LD_AUDIT": "/tmp/x.so", "LD_LIBRARY_PATH": "/tmp", "GCONV_PATH": "/tmp",
         "GLIBC_TUNABLES": "glibc.malloc.check=3", "LOCPATH": "/tmp", "PATH": "/tmp", "BROKER_SOCKET": "x"}
open("/tmp/x.so", "wb").write(b"not a library")
say(call(["broker", "can-i", "--", "ls"], env=loads))
""", profile="writer")  # fmt: skip

    assert "done" not in said[:-1], said
    assert said[-1][0] == 0
    assert said[-1][2] == ""


def test_the_client_started_through_a_descriptor_or_another_name_of_its_file_is_still_no_more_than_it(careful: Broker) -> None:
    said, _ = orchestrate(careful, START + """
fd = os.open(CLIENT, os.O_PATH)
for argv in (["broker", "can-i", "--", "ls"], ["broker", "file", "write", "new"], ["guard", "--fd", "0"]):
    for path in (fd, f"/proc/self/fd/{fd}", "/run/broker/bin/../bin/broker", "/run/broker/guard"):
        pid = os.fork()
        if not pid:
            try:
                if path == f"/proc/self/fd/{fd}":
                    os.set_inheritable(fd, True)
                os.dup2(os.open("/dev/null", os.O_RDWR), 0); os.dup2(0, 1); os.dup2(0, 2)
                os.execve(path, argv, {"PATH": "/bin"})
            finally:
                os._exit(99)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
say(os.listdir())
""", profile="careful")  # fmt: skip

    assert said[0:3] == [0, 0, 0]
    assert said[4:12] == [99] * 8
    assert said[-1] == []
