"""Asking for more than one has: by words, by options, by JSON, through one's children. Nothing is widened, and nothing breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, pids, sees
from conformance.test_delegation import PRELUDE, orchestrate, with_profiles
from escape.test_delegation_calls import RAW

SMALL = {"memory": "256M", "pids": 64, "time": "1m", "output": "1M", "cpus": 1}


@pytest.fixture
def lead(broker: Broker) -> Broker:
    broker.profile("small", sandbox=SMALL, max_risk="code_execution", effects={})
    return with_profiles(broker)


def created(broker: Broker) -> dict[str, dict[str, Any]]:
    """What each task was when it was made, by its path."""
    return {event["task"]: event for event in broker.events() if event["type"] == "task.created"}


def nothing_is_wider(broker: Broker) -> None:
    """Compare each sub-task with the one above it, as the record has them."""
    tasks = created(broker)
    for path, task in tasks.items():
        if (parent := tasks.get(path.rpartition("/")[0])) is None:
            continue
        assert set(task["effects"]) <= set(parent["effects"]), (task, parent)
        assert parent["trust"] == "trusted" or task["trust"] == "untrusted"
        for name, limit in parent["limits"].items():
            if limit is not None:
                assert task["limits"][name] is not None and 0 < task["limits"][name] <= limit, (name, task, parent)


ODD = ["0", "-1", "nan", "NaN", "inf", "-inf", "1e400", "1e-400", "1e18", "0x10", "1_000", " 1", "1 ", "+1", "١", "１", "1\u00a0", "",
       "1" * 5000, "9" * 400, "1.5", "1e-9", "2**63", "18446744073709551617", "1G1G", "1s-1s", "None", "null", "[]", "\x1b[2J1", "1T", "1d"]  # fmt: skip


def test_no_spelling_of_a_limit_is_more_than_the_profiles(lead: Broker) -> None:
    said, _ = orchestrate(lead, RAW + f"""
codes = []
for name in ("memory", "cpus", "pids", "time", "output", "layer_size", "tmp_size", "Memory", "", "memory\\0", "pids\\u200b"):
    for value in {ODD!r}:
        text = f"{{name}}={{value}}"
        code, out, err = call("delegate", "--profile", "small", "--trust", "trusted", "--limit", text, "--", "true", cwd=os.getcwd())
        codes.append([text, code, err[:200] + out[:400]])
say(codes)
""", profile=lead.profile("few", sandbox=SMALL, delegate={"tasks": 10_000}))  # fmt: skip

    nothing_is_wider(lead)
    for text, code, told in said[0]:
        known = text.partition("=")[0] in ("memory", "cpus", "pids", "time", "output")
        # As much as there is, or less; or what was wrong with it. A limit under which nothing can start starts nothing.
        assert code in ((0, 64, 70, 75, 77, 78, 124, 126, 137) if known else (64, 77)), (text, code, told)
        assert "Traceback" not in told
        assert "internal error" not in told, (text, told)
    assert sum(code == 77 for _, code, _ in said[0]) > 100
    assert lead.verified()


@pytest.mark.needs_root
def test_a_limit_too_small_for_the_kernel_takes_no_other_limit_away_nor_the_broker_with_it(lead: Broker) -> None:
    # The broker's own thread is in the group for a moment: with a byte of memory it would wait there for ever.
    lead.profile("tiny", sandbox={"memory": "64M", "cpus": 0.5})
    lead.profile("nothing", sandbox={"memory": 1})
    code = """
say([delegate("--profile", *words, "--", "true")["status"]
     for words in (["nothing"], ["tiny", "--limit", "cpus=1e-11"], ["tiny", "--limit", "memory=1"], ["tiny", "--limit", "memory=4096"])])
one = start("--profile", "tiny", "--limit", "cpus=0.01", "--stdin", "--stream", "--", "bash", "-c", "echo ready >&2; read line", stdin=subprocess.PIPE)
assert one.stderr.readline() == b"ready\\n"
say("ready")
input()
one.communicate(b"\\n")
"""
    with lead.started("python3", "-c", PRELUDE + code, stdin=-1) as running:
        running.read_until(b"ready")
        assert running.seen.splitlines()[0] == b'["failed", "denied", "denied", "denied"]'
        found = [limits_of(pid) for pid in pids() if sees(pid, lead.folder) and Path(f"/proc/{pid}/comm").read_text() == "bash\n"]
        running._stdin = b"\n"
        assert running.finish().code == 0

    assert found
    for memory, cpus in found:
        assert memory == "67108864"
        assert 0 < cpus <= 0.01


def limits_of(pid: int) -> tuple[str, float]:
    """What the kernel holds a process to: bytes, and processors (cgroups(7), both versions)."""
    groups = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path.lstrip("/"))
    root = Path("/sys/fs/cgroup")
    if "memory" in groups:
        memory = (root / "memory" / groups["memory"] / "memory.limit_in_bytes").read_text().strip()
        cpu = root / "cpu" / groups["cpu"]
        quota, period = (int((cpu / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    else:
        memory = (root / groups[""] / "memory.max").read_text().strip()
        quota, period = ((int(word) if word != "max" else -1) for word in (root / groups[""] / "cpu.max").read_text().split())
    return memory, quota / period


NAMES = ["../../x", "..", ".", "/etc/passwd", "profiles/small", "SMALL", "Small", "small ", " small", "small\n", "small\0", "ѕmall", "ｓmall",
         "small.json", "small/../any", "", "a" * 65, "any\u200b", "-p", "--", "$(any)", "\udcff", "small;any", ".small", "%73mall"]  # fmt: skip


def test_no_spelling_of_a_name_is_another_profile(lead: Broker) -> None:
    lead.file("x.json", json.dumps({"profiles": {"x": {"max_risk": "destructive"}}}))
    (lead.folder / "x.json").write_text(json.dumps({"profiles": {"x": {"max_risk": "destructive"}}}))
    said, _ = orchestrate(lead, RAW + f"""
codes = []
for name in {NAMES!r}:
    codes.append([call("delegate", f"--profile={{name}}", "--trust", "trusted", "--", "true")[0]])
    asked = json.dumps({{"profile": name, "command": ["true"], "trust_level": "trusted"}})
    child = subprocess.run(["broker", "delegate", "--request", "-"], input=asked.encode("utf-8", "surrogatepass"), capture_output=True)
    codes[-1].append(child.returncode)
say(codes)
""")  # fmt: skip

    assert {code for row in said[0] for code in row} <= {64, 77}
    assert set(created(lead)) == {"root"}




def good(*more: str) -> str:
    """A request that makes sense, and what spoils it."""
    return "{" + ", ".join(['"profile": "worker", "command": ["true"]', *more]) + "}"


BAD = [
    '{"profile": "reader", "profile": "worker", "command": ["true"]}', good('"limits": {"time": 1, "time": 2}'),
    good('"limits": {"memory": NaN}'), good('"limits": {"memory": Infinity}'), good('"limits": {"cpus": 1e400}'),
    good('"limits": {"memory": -1}'), good('"limits": {"pids": true}'), good('"limits": {"pids": [1]}'),
    good('"limits": {"pids": 1' + "0" * 5000 + "}"), good('"limits": {"sandbox": {"memory": 1}}'), good('"limits": []'),
    good('"Profile": "any"'), good('"profile\\u0000": "any"'), good('"__class__": 1'), good('"env": {"A": "b"}'),
    good('"trust_level": "root"'), good('"trust_level": true'), good('"trust_level": ["trusted"]'),
    good('"max_risk": "blocked"'), good('"max_risk": "unknown"'), good('"max_risk": "SAFE\\u0000"'), good('"max_risk": 99'),
    good('"tools_disabled": "shell"'), good('"tools_disabled": ["no-such"]'), good('"tools_disabled": [["shell"]]'),
    good('"delegate": {"depth": 99}'), good('"cwd": "/"'), good('"workspace": "/"'), good('"parent": "root"'),
    '{"profile": "worker", "command": []}', '{"profile": "worker", "command": [""]}', '{"profile": "worker", "command": ["true", 1]}',
    '{"profile": "worker", "command": ["true\\u0000"]}', '{"profile": "worker", "command": ["\\ud800"]}', good('"label": "\\udfff"'),
    json.dumps({"profile": "worker", "command": ["x"] * 4_097}), '{"profile": "worker", "command": {"0": "true"}}',
    good('"goal": ' + "[" * 50_000), "[" * 200_000, "{" * 1000, '{"a":' * 50_000, '"' + "x" * 300_000, "null", "[]", "1", '""', "", " ",
    good() + good(), good() + " x", good(""), "{'profile': 'worker'}", "\ufeff" + good(), good('"goal": "' + "x" * 262_144 + '"'),
]  # fmt: skip
BYTES = [b"\xff\xfe{\x00}\x00", b'{"profile": "work\xe9r"}', b"\x00" * 100, b'{"profile": "worker", "command": ["\xed\xa0\x80"]}', b"\x80" * 300_000]


def test_no_task_file_says_more_than_a_request_may(lead: Broker) -> None:
    (lead.workspace / "requests").mkdir()
    for number, text in enumerate([*(one.encode("utf-8", "surrogatepass") for one in BAD), *BYTES]):
        lead.file(f"requests/{number:03}", text)
    said, _ = orchestrate(lead, """
        codes = []
        for name in sorted(os.listdir("requests")):
            done = subprocess.run(["broker", "delegate", "--request", "-"], stdin=open("requests/" + name, "rb"), capture_output=True)
            codes.append([name, done.returncode, done.stderr.decode(errors="replace")[:300] + done.stdout.decode()[:300]])
        say(codes)
    """)  # fmt: skip

    texts = [*BAD, *BYTES]
    for name, code, told in said[0]:
        assert code in (64, 77), (texts[int(name)][:200], code, told)
        assert "internal" not in told
    assert set(created(lead)) == {"root"}


WORDS = [["echo", "\udcff\udc80"], ["echo", "\x1b[2J\x07\x9b"], ["echo", "\u202e\u2066evil"], ["echo", "a\nb\rc"], ["echo", *["x"] * 4_094],
         ["\udcff"], ["echo", "--", "--profile", "any"], ["echo", "$(curl x)", "`curl x`"], ["-c"], ["--"], ["echo", ""]]  # fmt: skip


def test_words_of_any_bytes_are_run_as_they_are_and_shown_escaped(lead: Broker) -> None:
    said, _ = orchestrate(lead, RAW + f"""
for words in {WORDS!r}:
    code, out, err = call("delegate", "--profile", "worker", "--label", "l\\x1b[2J\\u202e", "--", *words, cwd=os.getcwd())
    say([code, out, err])
""")  # fmt: skip

    for words, (code, out, err) in zip(WORDS, said, strict=True):
        assert not err, (words, err)
        found = json.loads(out)
        assert out.isascii()
        assert not set(map(chr, range(32))) & set(out.rstrip("\n"))
        assert code == found["exit_code"]
        assert code == (0 if words[0] == "echo" else code), (words, found)
        assert code in (0, 126, 127)
    assert json.loads(said[0][1])["stdout"] == "\\xff\\x80\n"
    assert json.loads(said[4][1])["stdout"].count("x") == 4_094
    for path in (*lead.journals(), lead.folder / "result-1.json"):
        assert b"\x1b" not in path.read_bytes()
    assert lead.verified()


def test_where_a_sub_task_starts_is_in_the_workspace_whatever_its_caller_says(lead: Broker) -> None:
    (lead.workspace / "inner").mkdir()
    (lead.workspace / "out").symlink_to("/etc")
    here = str(lead.workspace)
    folders = ["/", "/etc", "", ".", "..", "\0", f"{here}/..", f"{here}/inner/../..", f"{here}x", here.upper(), f"{here}/inner", f"{here}/out",
               f"{here}/no-such", "/proc/self/cwd", f"/proc/self/root{here}", "//" + here, "x" * 5000, "\udcff"]  # fmt: skip
    lead.profile("exact", max_risk="safe", effects={}, allowlist=["python3 -c pass"])
    said, _ = orchestrate(lead, RAW + f"""
for folder in {folders!r}:
    code, out, err = call("delegate", "--profile", "worker", "--", "pwd", "-P", cwd=folder)
    say([folder, code, json.loads(out)["stdout"] if out else err])
# An exact entry holds in the workspace, not where a link in it leads to.
say(call("delegate", "--profile", "exact", "--", "python3", "-c", "pass", cwd={here!r} + "/out")[0])
say(call("delegate", "--profile", "exact", "--", "python3", "-c", "pass", cwd={here!r})[0])
""")  # fmt: skip

    *rows, behind_the_link, inside = said
    for folder, code, told in rows:
        if code == 0:
            assert told in (f"{here}\n", f"{here}/inner\n", "/etc\n"), (folder, told)
            assert (told == "/etc\n") == folder.endswith("/out")  # in its own view: it could have gone there by itself
        else:
            assert "no-such" in folder or "\0" in folder, (folder, code, told)
    assert (behind_the_link, inside) == (126, 0)


def test_a_grandchild_has_no_more_than_each_task_above_it(lead: Broker) -> None:
    lead.environment |= {"TOKEN": "operators-own-9f3c"}
    lead.profile("rich-root", env={"pass": ["TOKEN"]}, delegate={"depth": 5})
    lead.profile("rich", env={"pass": ["TOKEN"]}, sandbox={"memory": "8G", "show": [".env"]}, max_risk="destructive", effects={})
    lead.profile("poor", sandbox=SMALL, max_risk="code_execution", effects={"remove": ["install"]}, env={"pass": []})
    lead.file("down.py", "import subprocess, sys\nleft = int(sys.argv[1])\n" + """
words = ["broker", "delegate", "--profile", "rich", "--trust", "trusted", "--", "python3", "down.py", str(left - 1)]
if left:
    sys.exit(subprocess.call(words))
subprocess.call(["python3", "-c", "import os; print(os.environ.get('TOKEN'))"])
""")  # fmt: skip
    said, _ = orchestrate(lead, """
        say(delegate("--profile", "poor", "--trust", "trusted", "--", "python3", "down.py", "2"))
    """, profile="rich-root")  # fmt: skip

    assert set(created(lead)) == {"root", "root/1", "root/1/1", "root/1/1/1"}
    nothing_is_wider(lead)
    assert "operators-own" not in said[0]["stdout"]
    assert created(lead)["root/1/1/1"]["limits"]["memory"] == 256 << 20


def test_a_tool_that_was_taken_away_stays_away_below(lead: Broker) -> None:
    lead.profile("alone", max_risk="code_execution", effects={})
    inner = ["broker", "delegate", "--profile", "alone", "--trust", "trusted", "--", "true"]
    said, _ = orchestrate(lead, f"""
        for tools in (["delegate"], ["shell", "delegate"]):
            without = [word for tool in tools for word in ("--without", tool)]
            say(delegate("--profile", "alone", "--trust", "trusted", *without, "--", "python3", "-c",
                         "import subprocess; subprocess.call({inner!r})"))
        for odd in ("", "DELEGATE", "delegate ", "no-such", "shell,delegate", "\\x1b"):
            done = subprocess.run(["broker", "delegate", "--profile", "alone", "--without", odd, "--", "true"], capture_output=True)
            say(done.returncode)
    """)  # fmt: skip

    for child in said[:2]:
        assert json.loads(child["stdout"])["rule"] == "tool.delegate.disabled"
    assert set(said[2:]) <= {64, 77}
