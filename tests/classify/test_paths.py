"""The catalogue of protected targets: one test an entry, and how paths are compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.classify import WATCHED_NAMES, classify, is_secret, protected_paths
from broker.classify.context import Context
from broker.classify.paths import Entry, _lookup, _may_begin, _named, catalogue, star_match
from broker.classify.risk import Risk
from broker.request.operation import Connection, Exec, FileAction, FileChange, FileRead, ShellText


def entries(kind: str, where: str) -> list[Entry]:
    """All entries of a section."""
    return [entry for found in catalogue(kind, where).values() for entry in found]


def example(entry: Entry) -> str:
    """A path that the entry covers."""
    path = "/".join(part.replace("*", "x") for part in entry.parts)
    return path + "/inner/file" if entry.folder else path


def write(path: str, context: Context, action: FileAction = FileAction.WRITE, other: str = "") -> set[str]:
    """The classes of a change."""
    answer = classify(FileChange(action=action, path=path, other=other), context)
    return {risk.label for risk in answer.effects - {Risk.SAFE}}


def read(path: str, context: Context) -> set[str]:
    """The classes of a read."""
    return {risk.label for risk in classify(FileRead(path=path), context).effects - {Risk.SAFE}}


def test_each_target_of_a_workspace_is_persistence_at_any_depth(context: Context) -> None:
    for entry in entries("persistence", "workspace"):
        for prefix in ("/work/project/", "/work/project/vendor/sub/"):
            assert "persistence" in write(prefix + example(entry), context)
            assert "persistence" in write(
                (prefix + example(entry)).upper().replace("/WORK/PROJECT", "/work/project"), context
            )
        assert write("/tmp/checkout/" + example(entry), context) == {"local_write"}


def test_each_target_of_a_home_is_persistence_in_anybodys(context: Context) -> None:
    for entry in entries("persistence", "home"):
        for home in ("/home/dev/", "/home/other/", "/root/", "/Users/other/"):
            assert "persistence" in write(home + example(entry), context)


def test_each_target_of_the_system_is_persistence(context: Context) -> None:
    for entry in entries("persistence", "absolute"):
        assert "persistence" in write("/" + example(entry), context)


def test_a_project_below_the_superusers_home_is_the_tasks_own_and_the_rest_of_it_is_not() -> None:
    context = Context(cwd="/root/project", home="/home/agent", workspace="/root/project")
    assert read("/root/project/a.txt", context) == set()
    assert write("/root/project/a.txt", context) == {"local_write"}
    assert read("/root/other/a.txt", context) == {"system_write"}
    assert "system_write" in write("/root/a.txt", context)
    assert read("/root/project/.env", context) == {"system_write"}


def test_each_secret_of_a_home_is_one(context: Context) -> None:
    for entry in entries("secret", "home"):
        assert read("/home/dev/" + example(entry), context) == {"system_write"}


def test_each_secret_of_the_system_is_one(context: Context) -> None:
    for entry in entries("secret", "absolute"):
        assert read("/" + example(entry), context) == {"system_write"}


def test_each_secret_by_name_is_one_wherever_it_lies(context: Context) -> None:
    for entry in entries("secret", "name"):
        assert read("/work/project/config/" + example(entry), context) == {"system_write"}
        assert is_secret("/anywhere/" + example(entry))


@pytest.mark.parametrize(
    "name", [".env.example", "id_rsa.pub", "secrets.go", "environment.ts", "keyboard.txt"]
)
def test_names_that_only_look_like_secrets_are_none(name: str, context: Context) -> None:
    assert read("/work/project/" + name, context) == set()
    assert not is_secret(name)


@pytest.mark.parametrize(
    "name", ["Makefile", "conftest.py", "package.json", "pyproject.toml", "build.rs", "setup.py"]
)
def test_what_is_edited_all_day_in_honest_work_is_a_local_write(name: str, context: Context) -> None:
    assert write("/work/project/" + name, context) == {"local_write"}


def test_a_sample_hook_is_inert(context: Context) -> None:
    assert write("/work/project/.git/hooks/pre-commit.sample", context) == {"local_write"}


def test_ordinary_files_of_a_repository_are_no_persistence(context: Context) -> None:
    for name in ("index", "HEAD", "objects/ab/cdef", "refs/heads/main", "COMMIT_EDITMSG", "logs/HEAD"):
        assert write("/work/project/.git/" + name, context) == {"local_write"}
    assert write("/work/project/.git", context, FileAction.MKDIR) == {"local_write"}


def test_a_rename_over_a_protected_file_is_judged_by_where_it_ends(context: Context) -> None:
    assert "persistence" in write(
        "/work/project/config.lock", context, FileAction.RENAME, other="/work/project/.git/config"
    )


def test_a_folder_renamed_onto_a_protected_parent_counts(context: Context) -> None:
    assert "persistence" in write(
        "/work/project/x", context, FileAction.RENAME, other="/work/project/.github"
    )


def test_a_link_to_a_secret_counts(context: Context) -> None:
    assert "system_write" in write("/work/project/l", context, FileAction.SYMLINK, other="/home/dev/.ssh")
    assert "system_write" in write("/work/project/l", context, FileAction.SYMLINK, other="/etc/passwd")
    assert write("/work/project/l", context, FileAction.SYMLINK, other="src/a") == {"local_write"}


def test_known_links_are_followed() -> None:
    linked = Context(
        cwd="/w", home="/home/dev", workspace="/w", symlinks=(("/w/out", "/etc"), ("/w/docs", "/w/.github"))
    )
    assert write("/w/out/motd", linked) == {"system_write"}
    assert "persistence" in write("/w/docs/workflows/ci.yml", linked)


def test_a_workspace_below_the_temporary_space_is_still_a_workspace() -> None:
    inside = Context(cwd="/tmp/w", home="/home/dev", workspace="/tmp/w")
    assert "persistence" in write("/tmp/w/.git/hooks/x", inside)
    assert write("/tmp/other/.git/hooks/x", inside) == {"local_write"}
    assert "persistence" in write("/home/dev/.bashrc", inside)


def asked_about(path: str) -> bool:
    """What the guard makes of the patterns (broker/guard/path.c)."""
    parts = path.lower().split("/")
    for name in WATCHED_NAMES:
        anchored, at_end = name.startswith("^"), name.lstrip("^").startswith("=")
        pattern = name.lstrip("^=").split("/")
        for at in range(1 if anchored else len(parts) - len(pattern) + 1):
            if at_end and at + len(pattern) != len(parts):
                continue
            if all(
                star_match(part, piece)
                for part, piece in zip(parts[at : at + len(pattern)], pattern, strict=False)
            ) and len(parts) - at >= len(pattern):
                return True
    return False


@pytest.mark.parametrize("kind", ["workspace", "home"])
def test_the_watched_names_cover_every_entry(kind: str) -> None:
    for entry in entries("persistence", kind):
        assert asked_about(("deep/" if kind == "workspace" else "") + example(entry)), entry.key


@pytest.mark.parametrize("kind", ["workspace", "home"])
def test_a_folder_filled_elsewhere_cannot_be_moved_to_an_entry_unasked(kind: str) -> None:
    for entry in entries("persistence", kind):
        parts = [part.replace("*", "x") for part in entry.parts]
        for count in range(1, len(parts) + 1):
            assert asked_about(("deep/" if kind == "workspace" else "") + "/".join(parts[:count])), entry.key


def test_the_files_that_git_keeps_for_itself_are_not_asked_about() -> None:
    for path in (".git/objects/ab/cdef", ".git/index.lock", ".git/refs/heads/main", ".git/logs/HEAD", ".git/COMMIT_EDITMSG",
                 "build/bin/tool", "src/config/settings.py"):  # fmt: skip
        assert not asked_about(path), path


def test_the_watched_names_are_patterns_that_the_guard_can_read() -> None:
    for name in WATCHED_NAMES:
        assert name == name.lower()
        for part in name.lstrip("^=").split("/"):
            assert part not in ("", "*")
            assert part.count("*") <= 1
            assert "*" not in part[1:-1]


def test_protected_paths_are_relative_to_the_workspace() -> None:
    found = protected_paths()
    assert {".git/hooks", ".github/workflows", ".envrc", ".claude", ".git/config"} <= set(found)
    assert not any(path.startswith("/") or path.endswith("/") for path in found)


SECTIONS = [(kind, where) for kind in ("persistence", "secret", "system") for where in ("workspace", "home", "absolute", "name")]  # fmt: skip


def test_the_catalogue_is_large_enough_to_be_of_use() -> None:
    assert sum(len(entries(kind, where)) for kind, where in SECTIONS) > 1500


@pytest.mark.parametrize(("kind", "where"), SECTIONS)
def test_every_entry_says_who_trusts_it_and_where_that_was_learned(kind: str, where: str) -> None:
    for entry in entries(kind, where):
        assert entry.source and not entry.source.endswith("]"), entry.key
        assert entry.why and entry.why[-1] not in ".[] ", entry.key
        assert entry.key == entry.key.lower(), entry.key


def test_each_target_of_the_system_is_its_business(context: Context) -> None:
    for entry in entries("system", "absolute"):
        assert write("/" + example(entry), context) & {"system_write", "destructive"}
        if not entry.key.startswith(("/proc", "/sys")):
            assert read("/" + example(entry), context) <= {"system_write"}


@pytest.mark.parametrize("kind", ["persistence", "secret"])
@pytest.mark.parametrize(
    "path",
    ["src/main.py", "README.md", "docs/index.md", "tests/test_a.py", "Cargo.lock", "assets/logo.svg", "index.html", "app/settings.py",
     "skills/index.ts", "tools.md", "public/app.json", "memory.c", "data/auth.csv", ".gitignore", ".editorconfig", ".dockerignore", ".venv/bin/python",
     ".venv/pyvenv.cfg", "node_modules/x/index.js", "target/debug/app", "build/main.o", ".terraform/x", "compile_commands.json", ".pnp.cjs",
     ".pytest_cache/x", ".mypy_cache/x", "dist/index.js", "package-lock.json", "k8s/app.yaml", "src/token.rs", "keys.py", "private.go"],
)  # fmt: skip
def test_what_projects_are_made_of_is_not_protected(kind: str, path: str, context: Context) -> None:
    found = (
        write("/work/project/" + path, context)
        if kind == "persistence"
        else read("/work/project/" + path, context)
    )
    assert found <= {"local_write"}


@pytest.mark.parametrize(
    "path", [".nuget/packages/x", ".cargo-cache", ".cache/pip/x", ".m2/repository/x", ".npm/_cacache/x", ".ccache/x", ".yarn/berry/cache/x",
             ".julia/packages/x", ".gradle/caches/x", ".config/libreoffice/4/user/x", ".config/pulse/cookie", ".local/share/uv/python/x", ".conda/environments.txt"],
)  # fmt: skip
def test_what_tools_keep_in_a_home_for_themselves_is_not_protected(path: str, context: Context) -> None:
    assert write("/home/dev/" + path, context) == {"local_write"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", {"network_egress"}),
        ("host.example", {"network_egress"}),
        ("169.254.169.254", {"network_egress", "system_write"}),
        ("10.0.0.1", {"network_egress", "system_write"}),
        ("0x7f000001", {"network_egress", "system_write"}),
        ("2130706433", {"network_egress", "system_write"}),
        ("127.1", {"network_egress", "system_write"}),
        ("::1", {"network_egress", "system_write"}),
        ("0x0a000001", {"network_egress", "system_write"}),
        ("167772161", {"network_egress", "system_write"}),
        ("10.1", {"network_egress", "system_write"}),
        ("fd00::1", {"network_egress", "system_write"}),
        ("::ffff:169.254.169.254", {"network_egress", "system_write"}),
        ("host.docker.internal", {"network_egress", "system_write"}),
        ("metadata.google.internal", {"network_egress", "system_write"}),
    ],
)
def test_connections_to_inner_addresses_are_worse(address: str, expected: set[str], context: Context) -> None:
    answer = classify(Connection(address=address, port=80), context)
    assert {risk.label for risk in answer.effects} == expected


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.1", "0x7f000001", "[::1]", "0.0.0.0", "localhost", "app.localhost"]
)
def test_loopback_is_the_tasks_own_for_a_program_and_the_machines_for_a_tool(
    address: str, context: Context
) -> None:
    program = classify(
        Exec(argv=("curl", f"http://{address}/"), path="/usr/bin/curl", program="/usr/bin/curl"), context
    )
    assert program.effects == classify(ShellText(text=f"curl 'http://{address}/'"), context).effects
    assert program.effects == {Risk.NETWORK_EGRESS}
    assert classify(Connection(address=address, port=80), context).effects == {
        Risk.NETWORK_EGRESS,
        Risk.SYSTEM_WRITE,
    }


_PIECES = st.sampled_from(
    [
        *(entry.parts[0] for entry in entries("persistence", "workspace")),
        *(entry.key for kind in ("secret", "innocent") for entry in entries(kind, "name")),
        *("src", "a.py", ".", ".x", "", "\n", ".bashr?", ".git[h]ooks"),
    ]
)
_COMPONENTS = st.builds(
    lambda piece, filling, end: piece.replace("*", filling) + end,
    _PIECES,
    st.sampled_from(["", "x", ".", "\n", "*", "pem.key"]),
    st.sampled_from(["", "", "x", "\n"]),
)


@given(st.lists(_COMPONENTS, min_size=1, max_size=4))
def test_what_the_quick_look_leaves_out_no_walk_finds(parts: list[str]) -> None:
    lower = "/".join(parts)
    if not _may_begin("persistence", "workspace", lower, lower.split("/")):
        index = catalogue("persistence", "workspace")
        assert all(_lookup(index, parts, at, inside=True) is None for at in range(len(parts)))


@given(_COMPONENTS)
def test_all_patterns_in_one_expression_find_what_each_by_itself_finds(name: str) -> None:
    for kind in ("secret", "innocent"):
        if name in catalogue(kind, "name") or (name[:1] == "." and any(mark in name for mark in "*?[")):
            continue
        by_itself = [
            entry for entry in entries(kind, "name") if "*" in entry.key and star_match(name, entry.key)
        ]
        assert _named(name, kind) == (by_itself[0] if by_itself else None)


def test_a_path_that_no_kernel_opens_is_unknown_and_costs_nothing() -> None:
    context = Context(cwd="/w", home="/home/dev", workspace="/w")
    long = "/w" + "/.git" * 30_000
    for operation in (
        FileChange(action=FileAction.WRITE, path=long),
        FileChange(action=FileAction.DELETE, path=long),
        FileRead(path=long),
    ):
        answer = classify(operation, context)
        assert Risk.UNKNOWN in answer.effects
        assert [reason.rule for reason in answer.reasons] == ["path.too_long"]
