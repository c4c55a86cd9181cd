"""Tools of a run with a desk: the operator sees what would be written before it is, and a shell's commands are held at the gate."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from serve.tool_clients import Opened

from broker.serve.tools_inside import Call
from broker.task.desk import ApprovalDesk, Given, NotTaken, Taken
from conformance.driver import until

HOOK = ".git/hooks/post-merge"
LIMITS: dict[str, Any] = {"max_risk": "local_write", "effects": {}}


class Asking:
    """A session whose operator is asked, and whose tools are called from a thread of their own."""

    def __init__(self, opened: Opened, pool: ThreadPoolExecutor) -> None:
        self.opened, self._pool = opened, pool
        desk = opened.session.stage.run.approvals
        assert desk is not None
        self.desk: ApprovalDesk = desk

    def start(self, tool: str, call: Call | None = None, **args: Any) -> Future[dict[str, Any]]:
        return self._pool.submit(lambda: self.opened.call(tool, call, **args))

    def row(self) -> dict[str, Any]:
        [row] = until(self.desk.rows, "a question")
        return dict(row)

    def say(self, row: dict[str, Any], how: str = "once", **more: str) -> object:
        return self.desk.answer(row["approval"], Given(how=how, who="ada (uid 1)", channel="test", **more))

    def content(self, path: str) -> str:
        result = self.opened.call("read_file", path=path)
        return str(result.get("text", result["code"]))


@pytest.fixture
def asking(open_tools: Callable[..., Opened], bubble: Any) -> Iterator[Callable[..., Asking]]:
    with ThreadPoolExecutor(8) as pool, ExitStack() as stack:

        def make(**how: Any) -> Asking:
            bubble.profile("held", **LIMITS)
            (bubble.workspace / ".git/hooks").mkdir(parents=True)
            (bubble.workspace / HOOK).write_text("#!/bin/sh\necho old\n")
            (bubble.workspace / HOOK).chmod(0o755)
            (bubble.workspace / "innocent").symlink_to(HOOK)
            made = Asking(open_tools("held", **({"ask": 60.0} | how)), pool)
            stack.callback(made.opened.tools.close)
            return made

        yield make


def test_a_write_is_shown_as_a_change_and_made_when_it_is_approved(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("write_file", path=HOOK, content="#!/bin/sh\necho \x1b[31mnew\n")
    row = here.row()

    assert (row["tool"], row["action"], row["class"], row["session"]) == ("write_file", "write", "persistence", False)
    assert row["path"].endswith(HOOK)
    assert row["diff"]["lines"] == ["@@ -1,2 +1,2 @@", " #!/bin/sh", "-echo old", "+echo \\x1b[31mnew"]
    assert isinstance(here.say(row, "session"), NotTaken)
    assert here.content(HOOK) == "#!/bin/sh\necho old\n"
    assert isinstance(here.say(row), Taken)
    assert done.result(15)["code"] == "ok"
    assert here.content(HOOK) == "#!/bin/sh\necho \x1b[31mnew\n"
    kinds = [one["type"] for one in here.opened.broker.events() if one["type"].startswith("approval.")]
    assert kinds == ["approval.asked", "approval.answered"]  # and nothing is asked about its steps


def test_an_approved_write_is_for_once(asking: Callable[..., Asking]) -> None:
    here = asking()
    for content in ("one", "two"):
        done = here.start("write_file", path=HOOK, content=content)
        assert isinstance(here.say(here.row()), Taken)
        assert done.result(15)["code"] == "ok"
    done = here.start("shell", command=f"echo three > {HOOK}")
    row = here.row()
    assert row["tool"] in ("exec", "file")
    here.say(row, "deny")
    done.result(15)
    assert here.content(HOOK) == "two"


def test_a_denied_write_says_why_and_changes_nothing(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("write_file", path=HOOK, content="new")
    here.say(here.row(), "deny", why="leave the hooks alone")

    result = done.result(15)
    assert (result["code"], result["rule"]) == ("denied", "approval.denied")
    assert "leave the hooks alone" in result["message"]
    assert here.content(HOOK) == "#!/bin/sh\necho old\n"


def test_what_was_changed_while_the_operator_looked_is_not_written(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("patch", path="other/../.git/hooks/post-merge", old_string="old", new_string="new")
    row = here.row()
    first = here.start("write_file", path=HOOK, content="#!/bin/sh\necho old, and more\n")
    until(lambda: len(here.desk.rows()) == 2, "the second question")
    assert isinstance(here.say(here.desk.rows()[1]), Taken)
    assert first.result(15)["code"] == "ok"
    here.say(row)

    assert done.result(15)["code"] == "changed"
    assert here.content(HOOK) == "#!/bin/sh\necho old, and more\n"


def test_of_a_batch_each_file_is_asked_about_and_nothing_is_written_if_one_is_denied(asking: Callable[..., Asking]) -> None:
    here = asking()
    here.opened.ok("write_file", path="plain", content="a")
    edits = [{"path": "plain", "old_string": "a", "new_string": "b"}, {"path": HOOK, "old_string": "old", "new_string": "new"}]
    done = here.start("batch_patch", edits=edits)
    here.say(here.row(), "deny")

    assert done.result(15)["code"] == "denied"
    assert here.content("plain") == "a"


def test_a_link_is_shown_where_it_leads_to(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("write_file", path="innocent", content="new")
    row = here.row()

    assert row["path"].endswith(HOOK)
    here.say(row)
    done.result(15)


def test_a_cancelled_call_takes_its_question_back(asking: Callable[..., Asking]) -> None:
    here, call = asking(), Call()
    done = here.start("write_file", call, path=HOOK, content="new")
    row = here.row()
    call.ask()

    assert done.result(15)["code"] == "denied"
    assert isinstance(here.say(row), NotTaken)
    assert here.content(HOOK) == "#!/bin/sh\necho old\n"


def test_a_shell_goes_as_far_as_the_gate_and_its_command_is_shown_in_its_text(asking: Callable[..., Asking]) -> None:
    here = asking()
    text = "echo start; if true; then curl -s http://a.invalid; fi; echo $?"
    done = here.start("shell", command=text)
    row = here.row()

    assert (row["task"], row["argv"]) == ("root", ["curl", "-s", "http://a.invalid"])
    shell = row["shell"]
    assert shell["text"] == text
    assert shell["text"][shell["start"] : shell["end"]] == "curl -s http://a.invalid"
    assert row["by"][0].endswith("bash")
    here.say(row)
    assert done.result(15)["stdout"] == "start\n6\n"


def test_the_shell_itself_is_held_for_what_it_does_by_itself(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("shell", command="echo x > /etc/motd; echo $?")
    row = here.row()

    assert row["argv"][:2] == ["/bin/bash", "-c"]
    here.say(row)
    row = until(lambda: next((one for one in here.desk.rows() if one["tool"] == "file"), None), "the file")
    assert row["path"] == "/etc/motd"
    here.say(row)
    assert done.result(15)["stdout"] == "1\n"  # the kernel has the last word


def test_without_a_desk_a_write_is_refused_at_once(asking: Callable[..., Asking], open_tools: Callable[..., Opened], bubble: Any) -> None:
    del asking
    bubble.profile("held", **LIMITS)
    opened = open_tools("held")
    before = threading.active_count()

    result = opened.call("write_file", path=HOOK, content="new")

    assert (result["code"], result["approvable"]) == ("denied", True)
    assert threading.active_count() == before


def test_what_writes_inside_is_asked_about_once_and_its_content_is_not_known_yet(asking: Callable[..., Asking]) -> None:
    here = asking()
    done = here.start("shell", command=f"echo new | broker file write {HOOK}; echo $?")
    row = here.row()

    assert row["path"].endswith(HOOK)
    assert "not known" in row["content"]
    here.say(row)
    assert done.result(15)["stdout"] == "0\n"
    assert here.content(HOOK) == "new\n"


def test_what_was_agreed_to_is_written_nowhere_else(asking: Callable[..., Asking]) -> None:
    here = asking()
    here.opened.ok("shell", command="mkdir sub other")
    done = here.start("write_file", path="sub/.envrc", content="new")
    row = here.row()
    here.opened.ok("shell", command="mv sub gone; ln -s other sub")
    assert isinstance(here.say(row), Taken)
    again = until(lambda: [one for one in here.desk.rows() if one["approval"] != row["approval"]] or done.done(), "an end")
    if again is not True:  # the guard asks about the place where it would really be written
        assert "/workspace/other/" in again[0]["path"]
        here.say(again[0], "deny")

    assert done.result(15)["code"] != "ok"
    assert here.opened.ok("shell", command="ls -A other gone")["stdout"] == "gone:\n\nother:\n"
