"""deepagents and LangChain's standard tests, the real ones; and mini-swe-agent with the documentation's recipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integrations.documented import BLOCKS, INSIDE, Run

pytestmark = pytest.mark.timeout(900)


@pytest.mark.needs_docker(image="python")
@pytest.mark.parametrize(("version", "ends"), [("deepagents-0.6", "86 passed"), ("deepagents", "79 passed, 7 xfailed")])
def test_langchains_standard_tests_pass(run: Run, version: str, ends: str) -> None:
    said = run(version, "-m", "pytest", "-c", INSIDE / "pytest.ini", INSIDE / "deepagents_suite.py", "-q", "-W", "ignore")
    assert re.search(rf"^{ends} in ", said, re.MULTILINE), said


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize("framework", ["deepagents", "mini"])
def test_an_agent_works_in_the_sandbox_and_only_what_is_permitted_lands(run: Run, workspace: Path, framework: str) -> None:
    word = {"deepagents": "create_deep_agent", "mini": "minisweagent"}[framework]
    code = "\n".join(block for block in BLOCKS if word in block)
    said = run(framework, INSIDE / "agents.py", framework, code)
    assert "read me" in said
    assert "denied curl https://example.com: curl reaches out to the network (network_egress)" in said
    assert "went on" in said
    assert re.search(r"denied: It changes \S+/.git/hooks/post-merge", said)
    assert re.search(r"Change\(path='hello.txt', change='created'", said)
    assert (workspace / "hello.txt").read_text() == "hello\n"
    assert not (workspace / ".git" / "hooks" / "post-merge").exists()


@pytest.mark.needs_bubblewrap
@pytest.mark.parametrize("version", ["deepagents-0.6", "deepagents"])
def test_without_code_execution_files_are_listed_and_written_and_what_is_refused_is_no_empty_answer(
    run: Run, workspace: Path, version: str
) -> None:  # fmt: skip
    said = run(version, "-c", (
        "import sys\n"
        "from broker.integrations.deepagents import BrokerBackend\n"
        "with BrokerBackend('builder', workspace='.', engine='bubblewrap') as backend:\n"
        "    here = sys.argv[1]\n"
        "    print('written', backend.write(here + '/new.txt', 'hello').error)\n"
        "    print('listed', sorted(entry['path'].removeprefix(here) for entry in backend.ls(here).entries))\n"
        "    print('missing', backend.ls(here + '/missing').error)\n"
        "    print('hook', backend.write(here + '/.git/hooks/x', '').error)\n"
        "    print('read', backend.read(here + '/README.md').error)\n"
    ), str(workspace))  # fmt: skip
    assert "written None\nlisted ['/.git', '/README.md', '/new.txt']\n" in said
    assert re.search("^missing Error: .*No such file", said, re.MULTILINE)
    assert re.search("^hook Failed to write file .*: denied: It changes ", said, re.MULTILINE)
    assert re.search("^read .*denied python3 -c", said, re.MULTILINE)
    assert not (workspace / "new.txt").exists()
