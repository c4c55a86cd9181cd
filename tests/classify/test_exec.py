"""Program starts: the name comes from where the program lies, never from argv[0]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.classify import changes_what_runs, classify
from broker.classify.context import Context
from broker.classify.risk import Assessment, Risk
from broker.request.operation import Exec


def judged(context: Context, *argv: str, path: str = "", program: str = "", **more: object) -> Assessment:
    """Classify one program start."""
    return classify(Exec(argv=argv, path=path, program=program, **more), context)  # type: ignore[arg-type]


def effects(answer: Assessment) -> set[str]:
    """The classes, without safe."""
    return {risk.label for risk in answer.effects - {Risk.SAFE}}


def rules(answer: Assessment) -> set[str]:
    """The rules that spoke."""
    return {reason.rule for reason in answer.reasons}


def test_argv_zero_is_not_trusted_when_the_path_is_known(context: Context) -> None:
    answer = judged(context, "ls", "https://host.example", path="/usr/bin/curl", program="/usr/bin/curl")
    assert effects(answer) == {"network_egress"}


def test_a_program_outside_is_known_by_its_file_name(context: Context) -> None:
    for path in ("/usr/bin/python3.11", "/usr/local/bin/python3", "/opt/tools/bin/python3.12"):
        assert rules(judged(context, "x", "a.py", path=path, program=path)) == {"interpreter.script"}
    gcc = "/usr/bin/x86_64-linux-gnu-gcc-12"
    assert effects(judged(context, "cc", "-c", "a.c", path=gcc, program=gcc)) == {"local_write"}


def test_a_program_that_the_task_can_write_is_code(context: Context) -> None:
    for place in ("/work/project/ls", "/tmp/git", "/home/dev/bin/true", "/work/project/../project/ls"):
        answer = judged(context, "ls", path=place, program=place)
        assert "code_execution" in effects(answer) and "program.task_made" in rules(answer)


def test_a_link_that_the_task_made_to_a_program_of_the_system_is_that_program(context: Context) -> None:
    answer = judged(context, "ls", "x.py", path="/work/project/ls", program="/usr/bin/python3.11")
    assert rules(answer) == {"interpreter.script"}


def test_a_link_of_the_system_to_a_program_of_the_task_is_the_tasks(context: Context) -> None:
    answer = judged(context, "ls", path="/usr/bin/ls", program="/work/project/evil")
    assert "program.task_made" in rules(answer)


def test_a_program_by_a_descriptor_is_the_program_it_is(context: Context) -> None:
    answer = judged(context, "x", "https://host.example", path="/proc/self/fd/3", program="/usr/bin/curl")
    assert effects(answer) == {"network_egress"}
    assert "program.task_made" in rules(judged(context, "x", path="/proc/self/exe", program="/tmp/x"))


def test_a_program_in_memory_is_code_and_unknown(context: Context) -> None:
    answer = judged(context, "x", path="/memfd:x (deleted)", program="/memfd:x (deleted)")
    assert effects(answer) == {"code_execution", "unknown"}


@pytest.mark.parametrize(
    "flags", [["-c"], ["-lc"], ["-cl"], ["-l", "-c"], ["-e", "-o", "pipefail", "-c"], ["+x", "-ec"]]
)
def test_a_shells_text_is_read_whatever_the_flags(context: Context, flags: list[str]) -> None:
    answer = judged(context, "bash", *flags, "touch made", path="/bin/bash", program="/usr/bin/bash")
    assert effects(answer) == {"local_write"}
    assert [part.argv for part in answer.parts][1] == ("touch", "made")


def test_a_shell_that_reads_its_input_is_code(context: Context) -> None:
    assert effects(judged(context, "sh", path="/bin/sh", program="/usr/bin/dash")) == {"code_execution"}
    assert effects(judged(context, "-bash", path="/bin/bash", program="/bin/bash")) == {"code_execution"}


def test_an_unrecognised_program_has_exactly_that_rule(context: Context) -> None:
    answer = judged(context, "x", path="/usr/bin/frobnicate", program="/usr/bin/frobnicate")
    assert rules(answer) == {"program.unrecognised"}
    assert effects(answer) == {"unknown"}


@pytest.mark.parametrize(
    ("path", "argv", "expected"),
    [
        ("/usr/lib/gcc/x86_64-linux-gnu/12/cc1", ["cc1", "-quiet", "a.c", "-o", "/tmp/a.s"], {"local_write"}),
        ("/usr/lib/gcc/x86_64-linux-gnu/12/collect2", ["collect2", "-o", "a.out", "a.o"], {"local_write"}),
        (
            "/usr/lib/go-1.19/pkg/tool/linux_amd64/compile",
            ["compile", "-o", "/tmp/x.a", "a.go"],
            {"local_write"},
        ),
        ("/usr/lib/go-1.19/pkg/tool/linux_amd64/link", ["link", "-o", "/tmp/x", "a.o"], {"local_write"}),
        (
            "/usr/lib/git-core/git-remote-https",
            ["git-remote-https", "origin", "https://h/x"],
            {"network_egress"},
        ),
        ("/usr/lib/git-core/git-add", ["git-add", "a"], {"local_write"}),
        ("/usr/lib/git-core/git", ["git", "maintenance", "run", "--auto"], {"local_write"}),
        (
            "/usr/bin/x86_64-linux-gnu-ld.bfd",
            ["ld", "-plugin", "/usr/lib/gcc/x86_64-linux-gnu/12/liblto_plugin.so", "-o", "a.out", "a.o"],
            {"local_write"},
        ),
        ("/usr/bin/ld", ["ld", "-plugin", "/tmp/x.so", "-o", "a.out"], {"code_execution", "local_write"}),
        ("/usr/bin/as", ["as", "-o", "/tmp/a.o", "/tmp/a.s"], {"local_write"}),
        ("/usr/bin/x86_64-linux-gnu-ld.bfd", ["ld", "-o", "a.out", "a.o"], {"local_write"}),
    ],
)
def test_what_tool_chains_start_for_themselves_is_understood(
    context: Context, path: str, argv: list[str], expected: set[str]
) -> None:
    assert effects(judged(context, *argv, path=path, program=path)) == expected


def test_relative_paths_are_resolved_against_the_programs_own_folder(context: Context) -> None:
    answer = judged(context, "tee", ".bashrc", path="/usr/bin/tee", program="/usr/bin/tee", cwd="/home/dev")
    assert effects(answer) == {"persistence"}


def test_an_environment_that_loads_code_raises_any_program(context: Context) -> None:
    answer = judged(
        context, "ls", path="/usr/bin/ls", program="/usr/bin/ls", env=(("LD_PRELOAD", "/tmp/x.so"),)
    )
    assert effects(answer) == {"code_execution"}
    assert "environment.LD_PRELOAD" in rules(answer)


def test_an_environment_raises_only_the_programs_it_concerns(context: Context) -> None:
    env = (("GIT_SSH_COMMAND", "./x"), ("PYTHONPATH", "src"), ("PATH", "/work/project/bin:/usr/bin"))
    assert effects(judged(context, "ls", path="/usr/bin/ls", program="/usr/bin/ls", env=env)) == set()
    assert "code_execution" in effects(
        judged(context, "git", "status", path="/usr/bin/git", program="/usr/bin/git", env=env)
    )


@pytest.mark.parametrize(
    "pair",
    [
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("GIT_PAGER", "cat"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("PAGER", "cat"),
        ("SHELL", "/bin/bash"),
        ("HOME", "/home/dev"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("EDITOR", "true"),
        ("CC", "gcc"),
        ("JAVA_HOME", "/usr/lib/jvm/default"),
        ("TERM", "xterm"),
        ("GIT_EXEC_PATH", "/usr/lib/git-core"),
        ("GIT_CONFIG_PARAMETERS", "'user.name'='A B' 'user.email'='a@host.example'"),
    ],
)
def test_harmless_settings_change_nothing(context: Context, pair: tuple[str, str]) -> None:
    assert changes_what_runs((pair,), context) is None


@pytest.mark.parametrize(
    "pair",
    [
        ("LD_LIBRARY_PATH", "/usr/lib"),
        ("LD_PRELOAD", "/usr/lib/x.so"),
        ("PATH", "/work/project/bin:/usr/bin"),
        ("PATH", "./bin:/usr/bin"),
        ("PATH", "/tmp:/usr/bin"),
        ("PATH", ":/usr/bin"),
        ("PATH", "/usr/bin:/home/dev/bin"),
        ("GIT_DIR", "/tmp/x"),
        ("GIT_EXEC_PATH", "/tmp/x"),
        ("GIT_EXEC_PATH", "libexec"),
        ("GIT_CONFIG_PARAMETERS", "'user.name'='a' 'core.pager'='./x'"),
        ("GIT_CONFIG_PARAMETERS", "'user.name'='a'b'core.pager'='./x'"),
        ("GIT_CONFIG_PARAMETERS", "'user.name'='it'\\''s'"),
        ("GIT_CONFIG_PARAMETERS", "'core.pager=./x'"),
        ("GOFLAGS", "-toolexec=./x"),
        ("NODE_OPTIONS", "--require ./x.js"),
        ("BASH_ENV", "/tmp/x"),
        ("PYTHONPATH", "/tmp"),
        ("BASH_FUNC_ls%%", "() { x; }"),
        ("HOME", "/tmp"),
    ],
)
def test_settings_that_change_what_runs_are_named(context: Context, pair: tuple[str, str]) -> None:
    why = changes_what_runs((pair,), context)
    assert why is not None and why.startswith(pair[0])


def test_a_home_that_is_not_writable_is_outside(context: Context) -> None:
    narrow = replace(context, writable=("/work/project", "/tmp"))
    answer = judged(narrow, "touch", "/home/dev/note", path="/usr/bin/touch", program="/usr/bin/touch")
    assert effects(answer) == {"system_write"}


def test_no_argv_and_no_path_is_unknown(context: Context) -> None:
    assert effects(judged(context)) == {"unknown"}


@pytest.mark.parametrize(("program", "risk"), [("grep", Risk.SAFE), ("rm", Risk.LOCAL_WRITE)])
def test_as_many_names_as_xargs_passes_are_judged(context: Context, program: str, risk: Risk) -> None:
    names = [f"src/{number}.c" for number in range(9000)]
    argv = (program, *(["-n", "x"] if program == "grep" else []), *names)
    path = f"/usr/bin/{program}"
    assert judged(context, *argv, path=path, program=path).risk is risk
    worse = "/etc/passwd" if program == "rm" else f"{context.home}/.ssh/id_rsa"
    assert judged(context, *argv[:-1], worse, path=path, program=path).risk >= Risk.SYSTEM_WRITE


def test_a_text_in_an_argument_is_still_bounded(context: Context) -> None:
    answer = judged(context, "sh", "-c", "true " * 5000, path="/usr/bin/sh", program="/usr/bin/sh")
    assert Risk.UNKNOWN in answer.effects
