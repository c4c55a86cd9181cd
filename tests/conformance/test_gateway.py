"""Gateways on real sandboxes: what a task reaches, what never enters it, and what is left of it for its sub-tasks."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import Broker, until

SECRET = "s3cret-" + "0123456789abcdef"
CLIENT = """
import json, os, sys, urllib.request, urllib.error
def ask(path, body=None, base=os.environ.get("MODEL_URL", "")):
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data=body), timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError as error:
        return 0, str(error.reason)
"""


class Model(BaseHTTPRequestHandler):
    """Says what it was asked, but for the credential; /wait answers when it is let."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str]]
    go: threading.Event

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        self.seen.append((self.path, self.headers.get("x-api-key", "")))
        if self.path == "/v1/wait":
            self.go.wait(60)
        text = json.dumps({"path": self.path, "body": self.rfile.read(size).decode()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *words: Any) -> None:
        pass


@contextlib.contextmanager
def serving(handler: Any, address: str = "127.0.0.1") -> Iterator[int]:
    with ThreadingHTTPServer((address, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Lab:
    """A broker with a model behind a gateway."""

    def __init__(self, broker: Broker, port: int, model: type[Model]) -> None:
        self.broker, self.port, self.model = broker, port, model
        self.profile("modelled")

    def gateway(self, **settings: Any) -> dict[str, Any]:
        return {
            "upstream": f"http://127.0.0.1:{self.port}", "env": {"MODEL_URL": "{url}"}, "paths": ["/v1"],
            "headers": {"x-api-key": {"env": "MODEL_KEY"}}, **settings,
        }  # fmt: skip

    def profile(self, name: str, **settings: Any) -> str:
        return self.broker.profile(name, gateways={"model": self.gateway(**settings)})

    def run(self, code: str, profile: str = "modelled") -> Any:
        return self.broker.run("python3", "-c", CLIENT + code, profile=profile)


@pytest.fixture
def lab(broker: Broker) -> Iterator[Lab]:
    model = type("Here", (Model,), {"seen": [], "go": threading.Event()})
    broker.environment["MODEL_KEY"] = SECRET
    with serving(model) as port:
        yield Lab(broker, port, model)
        model.go.set()


def test_a_task_without_a_network_reaches_its_model_and_nothing_else(lab: Lab) -> None:
    done = lab.run("print(json.dumps([ask('/v1/messages?k=v', b'hello'), ask('/admin', b'x'), ask('', base='http://192.0.2.1/')]))")

    (status, text), (refused, why), (none, _) = json.loads(done.out)
    assert (status, json.loads(text)) == (200, {"path": "/v1/messages?k=v", "body": "hello"})
    assert (refused, none) == (403, 0)
    assert "lets only these paths through: /v1" in why
    assert lab.model.seen == [("/v1/messages?k=v", SECRET)]
    assert {row["rule"] for row in done["denials"]} == {"gateway.path", "net.refused"}
    kinds = [row["type"] for row in lab.broker.events()]
    assert kinds.index("gateway.requested") < kinds.index("gateway.answered") < kinds.index("run.finished")


def test_the_credential_is_nowhere_inside_and_in_no_record(lab: Lab, tmp_path: Path) -> None:
    code = "print(ask('/v1/x', b'hello')[0], flush=True); print(dict(os.environ)); ask('/v1/wait', b'')"
    started = lab.broker.started("python3", "-c", CLIENT + code, profile="modelled")
    with started as running:
        running.read_until(b"200")
        until(lambda: len(lab.model.seen) == 2 or None, "the second request")
        inside = lab.broker.inside()
        assert inside
        for pid in inside:
            assert SECRET.encode() not in memory(pid), f"process {pid} holds the credential"
        lab.model.go.set()
        done = running.finish()
    assert done.code == 0, done.err
    assert SECRET.encode() not in done.out + done.err + json.dumps(done.result).encode()
    for path in lab.broker.folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert lab.model.seen[0][1] == SECRET


def memory(pid: int) -> bytes:
    """Everything readable in a process: its memory, its environment, its arguments."""
    found = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/mem", "rb", 0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()  # type: ignore[union-attr]
            if rights.startswith("rw"):
                with contextlib.suppress(OSError):
                    file.seek(int(start, 16))
                    found.append(file.read(int(end, 16) - int(start, 16)))
    return b"".join(found)


def test_the_search_for_the_credential_finds_what_is_there(lab: Lab) -> None:
    done = lab.broker.started("python3", "-c", "import sys; kept = sys.argv[1]; print('up', flush=True); sys.stdin.read()", SECRET, stdin=subprocess.PIPE)
    with done as running:
        running.read_until(b"up")
        assert any(SECRET.encode() in memory(pid) for pid in lab.broker.inside())


def test_a_missing_credential_is_one_sentence_to_the_agent_and_in_the_record(lab: Lab) -> None:
    del lab.broker.environment["MODEL_KEY"]
    done = lab.run("print(ask('/v1/x', b'hello'))")
    assert b"MODEL_KEY is not set in the environment that broker was started in" in done.out
    assert lab.model.seen == []
    [row] = [row for row in lab.broker.events() if row["type"] == "gateway.answered"]
    assert "MODEL_KEY is not set" in row["error"]


def test_nothing_inside_can_be_where_the_gateway_is(lab: Lab) -> None:
    done = lab.run(
        "import socket\nport = int(os.environ['MODEL_URL'].rpartition(':')[2])\n"
        "for how in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):\n"
        "    s = socket.socket()\n"
        "    if how: s.setsockopt(socket.SOL_SOCKET, how, 1)\n"
        "    try: s.bind(('127.0.0.1', port)); s.listen(); print('taken')\n"
        "    except OSError as error: print(error.errno)\n"
        "print(ask('/v1/x', b'')[0])"
    )
    assert done.out.split() == [b"98", b"98", b"98", b"200"]


CHILD = """
import subprocess
words = ["broker", "delegate", "--trust", "trusted", "--profile", sys.argv[1], "--", "python3", "-c", sys.argv[2]]
child = subprocess.run(words, capture_output=True, text=True)
print(json.dumps([ask('/v1/parent', b'')[0], json.loads(child.stdout)]))
"""


def delegated(lab: Lab, profile: str, child: str) -> tuple[str, Any]:
    """Run a task with a sub-task; return what the sub-task said, and its result."""
    done = lab.broker.run("python3", "-c", CLIENT + CHILD, profile, CLIENT + child, profile="modelled")
    status, result = json.loads(done.out)
    assert status == 200
    return result["stdout"], result


ASK = "print(os.environ.get('MODEL_URL')); print(ask('/v1/child', b'')[0] if 'MODEL_URL' in os.environ else 'no way')"


def test_a_sub_task_has_a_gateway_that_its_parent_has(lab: Lab) -> None:
    lab.profile("same")
    said, _ = delegated(lab, "same", ASK)
    assert said.split()[-1] == "200"
    assert sorted(path for path, _ in lab.model.seen) == ["/v1/child", "/v1/parent"]
    tasks = {row["path"]: row["task"] for row in lab.broker.events() if row["type"] == "gateway.requested"}
    assert tasks["/v1/parent"] == "root"
    assert tasks["/v1/child"].startswith("root/")


@pytest.mark.parametrize("settings", [{"paths": ["/"]}, {"methods": ["GET", "POST", "PUT"]}, {"headers": {}}, {"request_bytes": "1 GiB"}])
def test_a_sub_task_has_no_gateway_that_is_in_anything_other_than_its_parents(lab: Lab, settings: dict[str, Any]) -> None:
    lab.profile("other", **settings)
    said, _ = delegated(lab, "other", ASK)
    assert said.split() == ["None", "no", "way"]
    assert [path for path, _ in lab.model.seen] == ["/v1/parent"]


def test_a_rate_is_that_of_the_whole_tree(lab: Lab) -> None:
    for name in ("modelled", "same"):
        lab.profile(name, per_minute=2)
    done = lab.broker.run("python3", "-c", CLIENT + CHILD, "same", CLIENT + ASK + "\nprint(ask('/v1/child', b'')[0])", profile="modelled")
    status, result = json.loads(done.out)
    assert (result["stdout"].split()[-2:], status) == (["200", "200"], 429)


def test_entries_match_although_the_gateway_sets_variables(lab: Lab) -> None:
    # Where a program's variables change what it talks to, an entry does not match: unless it was the profile that set them.
    lab.broker.file("check.py", "print('checked')")
    gateways = {"model": lab.gateway(env={"ANTHROPIC_BASE_URL": "{url}", "OPENAI_BASE_URL": "{url}/v1"})}
    for name in ("listed", "below"):
        lab.broker.profile(name, max_risk="local_write", effects={}, gateways=gateways, allowlist=["python3 check.py"], network={"hosts": ["pypi.org"]})
    assert lab.broker.run("sh", "-c", "python3 check.py; ls", profile="listed").out == b"checked\ncheck.py\n"
    changed = lab.broker.run("sh", "-c", "HTTPS_PROXY=http://127.0.0.1:9 python3 check.py", profile="listed")
    assert changed.denied("check.py")
    inner = lab.broker.run("broker", "delegate", "--trust", "trusted", "--profile", "below", "--", "python3", "check.py", profile="listed")
    assert json.loads(inner.out)["stdout"] == "checked\n"


def test_a_sub_task_of_a_task_without_gateways_has_none(lab: Lab) -> None:
    words = "import subprocess; print(subprocess.run(['broker', 'delegate', '--trust', 'trusted', '--profile', 'modelled', '--', 'python3', '-c', sys.argv[1]], capture_output=True, text=True).stdout)"
    done = lab.broker.run("python3", "-c", CLIENT + words, CLIENT + ASK)
    assert json.loads(done.out)["stdout"].split() == ["None", "no", "way"]
    assert lab.model.seen == []


# Listed hosts


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A host outside with a file and a git repository; 127.0.0.2 inside is the sandbox's own."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "file").write_text("from outside")
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y"]
    for words in (["init", "-q", "repo"],):
        subprocess.run([*git, *words], check=True)
    git[2] = str(folder / "repo")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "update-server-info"], check=True)

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words, directory=str(folder))

        def log_message(self, *words: Any) -> None:
            pass

    with serving(Files, "127.0.0.2") as port:
        yield f"127.0.0.2:{port}"


COMMANDS = {
    "curl": ["curl", "-sS", "http://{}/file"],
    "curl, tunnelled": ["curl", "-sS", "--proxytunnel", "http://{}/file"],
    "git": ["git", "ls-remote", "http://{}/repo/.git"],
    "python": ["python3", "-c", "import urllib.request as r; print(r.urlopen('http://{}/file').read())"],
}


@pytest.mark.parametrize("client", COMMANDS)
def test_programs_that_know_proxies_reach_a_listed_host(broker: Broker, site: str, client: str) -> None:
    broker.profile("reaching", max_risk="network_egress", network={"hosts": [site]})
    done = broker.run(*(word.format(site) for word in COMMANDS[client]), profile="reaching")
    assert done.code == 0, done.err
    assert re.search(rb"from outside|[0-9a-f]{40}\s+HEAD", done.out)
    assert done["denials"] == []
    decided = [(row["operation"]["address"], row["verdict"]) for row in broker.events() if row["type"] == "connection.decided"]
    assert set(decided) == {("127.0.0.2", "allow")}


def test_a_host_that_is_not_listed_is_a_denial(broker: Broker, site: str) -> None:
    broker.profile("reaching", max_risk="network_egress", network={"hosts": ["pypi.org"]})
    done = broker.run("curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"http://{site}/file", profile="reaching")
    assert done.out == b"403"
    assert [row["rule"] for row in done["denials"]] == ["network.hosts"]


def test_a_listed_host_does_not_raise_the_ceiling(broker: Broker, site: str) -> None:
    broker.profile("below", max_risk="code_execution", effects={}, network={"hosts": [site]})
    done = broker.run("sh", "-c", f"curl -sS http://{site}/file", profile="below")
    assert done.code != 0
    [row] = done.denied("curl")
    assert row["class"] == "network_egress"
    reached = broker.run("python3", "-c", COMMANDS["python"][2].format(site), profile="below")
    assert b"403" in reached.err
    assert [row["rule"] for row in reached["denials"]] == ["network.ceiling"]


def test_what_an_entry_grants_reaches_a_listed_host(broker: Broker, site: str) -> None:
    code = f"import urllib.request as r; print(r.urlopen('http://{site}/file').read())"
    broker.file("fetch.py", code)
    entry = {"command": "python3 fetch.py", "effects": ["network_egress"]}
    broker.profile("entry", max_risk="local_write", effects={}, network={"hosts": [site]}, allowlist=[entry])
    done = broker.run("sh", "-c", "python3 fetch.py", profile="entry")
    assert b"from outside" in done.out, done.err


def test_the_proxy_is_narrowed_like_everything_else(broker: Broker, site: str) -> None:
    broker.profile("reaching", max_risk="network_egress", network={"hosts": [site]})
    broker.profile("wider", max_risk="network_egress", network={"hosts": [site, "*.example.com"]})
    code = (
        "import json, subprocess, sys\n"
        "for profile in ('reaching', 'wider'):\n"
        "    words = ['broker', 'delegate', '--trust', 'trusted', '--profile', profile, '--', 'curl', '-sS', '-o', '/dev/null', '-o', '/dev/null', '-w', '%{http_code} ', *sys.argv[1:]]\n"
        "    print(json.loads(subprocess.run(words, capture_output=True, text=True).stdout)['stdout'])\n"
    )
    done = broker.run("python3", "-c", code, f"http://{site}/file", "http://a.example.com/", profile="reaching")
    assert done.out.split() == [b"200", b"403", b"200", b"403"]


def test_a_sub_task_with_a_lower_ceiling_reaches_no_listed_host(broker: Broker, site: str) -> None:
    broker.profile("reaching", max_risk="network_egress", network={"hosts": [site]})
    words = ["broker", "delegate", "--trust", "trusted", "--profile", "reaching", "--max-risk", "code_execution", "--"]
    done = broker.run(*words, "python3", "-c", COMMANDS["python"][2].format(site), profile="reaching")
    assert [row["rule"] for row in json.loads(done.out)["denials"]] == ["network.ceiling"]
