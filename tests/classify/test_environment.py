"""Variables that change what runs: one test a name, in a text and with a program start, and what disarms them."""

from __future__ import annotations

import pytest

from broker.classify import WATCHED_ENV, changes_what_runs, classify
from broker.classify.context import Context
from broker.classify.environment import affects
from broker.classify.risk import Risk
from broker.classify.secret_names import is_secret_name
from broker.classify.tables import load
from broker.request.operation import Exec, ShellText

TABLE = load()["environment"]
NAMES = [*TABLE["runs"], *TABLE["set_by_a_text"]]


def example(name: str) -> str:
    """A name that the table's one covers."""
    return name.replace("*", "X")


@pytest.mark.parametrize(
    "form", ["{}=/work/project/planted true", "export {}=./planted", "env {}='x y' true"]
)
def test_setting_each_name_in_a_text_is_code_execution(form: str, context: Context) -> None:
    for name in NAMES:
        answer = classify(ShellText(text=form.format(example(name))), context)
        assert Risk.CODE_EXECUTION in answer.effects, name
        assert f"environment.{example(name)}" in {reason.rule for reason in answer.reasons}


def test_an_allowlist_entry_does_not_match_where_a_name_is_set(context: Context) -> None:
    for name in NAMES:
        assert changes_what_runs(((example(name), "/work/project/planted"),), context) is not None, name


@pytest.mark.parametrize(("program", "names"), TABLE["affects"].items())
def test_a_program_start_is_raised_by_the_names_that_concern_it(
    program: str, names: list[str], context: Context
) -> None:
    for name in names:
        known = [watched for watched in WATCHED_ENV if _overlap(watched, name)]
        assert known, f"{name} concerns {program}, and the guard never reports it"
        path = "/usr/bin/" + ("ls" if program == "every" else program)
        concrete = example(known[0] if "*" in name else name)
        start = Exec(argv=(path,), path=path, program=path, env=((concrete, "/work/project/planted"),))
        assert Risk.CODE_EXECUTION in classify(start, context).effects, concrete


def _overlap(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if short.endswith("*"):
        return long.startswith(short[:-1])
    return long.rstrip("*") == short or (long.endswith("*") and short.startswith(long[:-1]))


def test_a_name_that_does_not_concern_a_program_raises_nothing(context: Context) -> None:
    for program, name in (("cat", "GIT_SSH"), ("grep", "EDITOR"), ("ls", "PAGER"), ("git", "RSYNC_RSH")):
        assert not affects(program, name)
        path = f"/usr/bin/{program}"
        start = Exec(argv=(path, "--version"), path=path, program=path, env=((name, "/work/project/x"),))
        assert Risk.CODE_EXECUTION not in classify(start, context).effects


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in TABLE["harmless"].items() if name != "*" for value in values]
)  # fmt: skip
def test_a_value_that_disarms_is_no_change(name: str, value: str, context: Context) -> None:
    assert changes_what_runs(((name, value),), context) is None


@pytest.mark.parametrize("name", [name for name in TABLE["harmless"] if name != "*"])
def test_only_names_that_matter_have_values_that_disarm(name: str, context: Context) -> None:
    assert changes_what_runs(((name, "./planted"),), context) is not None


@pytest.mark.parametrize("name", TABLE["by_place"]["names"])
def test_a_name_that_counts_by_its_place_is_no_change_where_it_is_the_systems(
    name: str, context: Context
) -> None:
    assert changes_what_runs(((name, "/usr/lib/x"),), context) is None
    assert changes_what_runs(((name, "/work/project/x"),), context) is not None


def test_ordinary_variables_change_nothing(context: Context) -> None:
    for name in ("FOO", "TERM", "LANG", "LC_ALL", "TZ", "USER", "PWD", "DEBUG", "CI", "PORT", "TMPDIR", "COLUMNS", "VERBOSE", "N", "i",
                 "NODE_ENV", "DATABASE_URL", "VERSION", "OUT", "PREFIX", "DESTDIR", "FILE", "URL", "DISPLAY", "XDG_RUNTIME_DIR", "SHLVL", "HOSTNAME"):  # fmt: skip
        assert changes_what_runs(((name, "/work/project/x"),), context) is None, name


@pytest.mark.parametrize(
    "name", ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWORD", "OPENAI_API_KEY", "STRIPE_SECRET", "NPM_AUTH",
             "SSH_PASSPHRASE", "VAULT_TOKEN", "CLIENT_SECRET", "JWT_SECRET", "ENCRYPTION_KEY", "BEARER", "KUBE_CREDENTIALS", "azure_client_secret",
             "DOCKER_AUTH_CONFIG", "SLACK_WEBHOOK_URL", "MYSQL_ROOT_PASSWORD", "GH_PAT", "AWS_SESSION_TOKEN", "SIGNING_KEY", "DEPLOY_KEY", "SMTP_PASS",
             "HEROKU_API_KEY", "TF_VAR_db_password", "GOOGLE_APPLICATION_CREDENTIALS", "ANTHROPIC_AUTH_TOKEN", "SENTRY_DSN", "MONGODB_URI", "COOKIE_SECRET"],
)  # fmt: skip
def test_a_name_says_that_it_holds_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "TOKENIZER", "KEYBOARD", "MONKEY", "AUTHOR", "PASSED", "SECRETARY", "KEYS_DIR", "PATTERN", "COMPASS", "BYPASS",
             "USER", "i", "PWD", "OLDPWD", "COMPAT", "PATIENT", "PUBLIC_KEY", "SSH_AUTH_SOCK", "GIT_AUTHOR_NAME", "CACHE_KEY", "PRIMARY_KEY", "key"],
)  # fmt: skip
def test_a_name_that_only_looks_like_one_holds_none(name: str) -> None:
    assert not is_secret_name(name)
