"""Step 5: what a secret looks like, as data: the rules by which one is left out of the record (redact.py).

A rule's pattern has a group `secret`, which is what goes; what stands before it stays, so that the word keeps its
shape. Patterns are looked for in any text, and never begin within a word unless they say so. docs/events.md lists
the rules (a test compares).
"""

from __future__ import annotations

from broker.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One shape. `example` is a text, and `left` what is left of it, with … for the secret.

    Where none of the `needles` is in a text, in small letters, the pattern cannot match it: looking for them costs little.
    """

    id: str
    what: str
    needles: tuple[str, ...]
    pattern: str
    example: str
    left: str


# A literal of a shell text. What is expanded (`$X`) is none, and no secret. In quotes (those of a text within a text
# included) it is all between them; without, it ends where the shell would end it, and is never more than one word: a
# longer reach would let an agent hide a command in what looks like a value.
QUOTES = ("'\"'\"'", "'\\''", '\\"', "'", '"')
_INNER = r"""[^'"\\$`]*"""
_PLAIN = r"""[^\s'"$`\\;|&<>()]*"""
_BARE = r"""(?:[^\s'"$`\\;|&<>()]|\\.)"""
VALUE = (
    rf"""(?:'"'"'{_INNER}'"'"'|'\\''{_INNER}'\\''|\\"{_INNER}\\"|'[^']*'(?!['"\w])|"(?:[^"$`\\]|\\[^"])*"(?!['"\w])"""
    rf"""|(?:{_BARE}|'{_PLAIN}'|"{_PLAIN}")++)"""
)
# A name that says what its value is. At the end of a name, since `max_tokens` and `TOKEN_FILE` hold none.
NOUN = (
    r"(?:password|passwd|passphrase|secret|token|credentials?|api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key"
    r"|auth[-_]?key|signing[-_]?key|encryption[-_]?key|(?<=[-_])(?:pwd|pass|pat|psk))"
)
# The same in the middle of a variable's name: AWS_SECRET_ACCESS_KEY, SECRET_KEY_BASE, DB_PASSWORD_PROD.
_MIDDLE = (
    r"(?:password|passwd|secret|token)_(?!(?:file|path|dir|url|uri|id|name|type|cmd|command|helper|ttl|length|limit|count"
    r"|policy|arn|expir\w*|endpoint|store|version)\b)\w{1,64}"
)
# Lengths are bounded: what is looked at was written by an agent, who must not make it take long.
NAME = rf"\w{{0,64}}?(?:{NOUN}\d{{0,4}}|{_MIDDLE})"
OPTION = rf"--?+(?!(?:no|without|disable|skip)-)[\w.-]{{0,64}}?{NOUN}"
_START = r"(?<![\w-])"
_ALONE = r"(?<![A-Za-z0-9_-])"

_NOUNS = ("pass", "secret", "token", "credential", "key", "_pwd", "-pwd", "_pat", "-pat", "_psk", "-psk")  # of NOUN and NAME

RULES = (
    Rule(
        id="private-key", what="the body of a private key",
        needles=("private key",),
        pattern=r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----\s*+"
        r"(?P<secret>(?:[A-Za-z0-9+/=:,]|-(?!----)|[\s\\](?!\s*-----))++(?=\s*-----END)|[A-Za-z0-9+/=]{16,})",
        example="-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----",
        left="-----BEGIN PRIVATE KEY-----\n…\n-----END PRIVATE KEY-----",
    ),
    Rule(
        id="github-token", what="GitHub tokens", needles=("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        pattern=rf"{_ALONE}(?:gh[pousr]_|github_pat_)(?P<secret>\w{{20,}})",
        example="ghp_16C7e42F292c6912E7710c838347Ae178B4a", left="ghp_…",
    ),
    Rule(
        id="gitlab-token", what="GitLab tokens",
        needles=("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glsoat-"),
        pattern=rf"{_ALONE}gl(?:pat|dt|rt|ptt|cbt|soat)-(?P<secret>[\w-]{{20,}})",
        example="glpat-3kHs9vQ2mZ7xW1nB5tYc", left="glpat-…",
    ),
    Rule(
        id="sk-token", what="OpenAI, Anthropic and other keys that begin with sk-",
        needles=("sk-",),
        pattern=rf"{_ALONE}sk-(?=[\w-]{{0,64}}\d)(?P<secret>[\w-]{{16,}})",
        example="sk-proj-4fH2kQ9vLx7ZtB1n", left="sk-…",
    ),
    Rule(
        id="stripe-key", what="Stripe keys", needles=("k_live_", "k_test_"),
        pattern=rf"{_ALONE}[prs]k_(?:live|test)_(?P<secret>\w{{10,}})",
        example="sk_live_4eC39HqLyjWDarjtT1", left="sk_live_…",
    ),
    Rule(
        id="aws-key", what="AWS access key ids", needles=("akia", "asia", "aroa", "aida"),
        pattern=rf"{_ALONE}A(?:KIA|SIA|ROA|IDA)(?P<secret>[A-Z0-9]{{16}})(?![A-Za-z0-9])",
        example="AKIAIOSFODNN7EXAMPLE", left="AKIA…",
    ),
    Rule(
        id="slack-token", what="Slack tokens", needles=("xox",),
        pattern=rf"{_ALONE}xox[abeoprs]-(?P<secret>[\w-]{{10,}})",
        example="xoxb-2048-1337-abcdef", left="xoxb-…",
    ),
    Rule(
        id="google-key", what="Google keys and tokens", needles=("aiza", "ya29."),
        pattern=rf"{_ALONE}(?:AIza|ya29\.)(?P<secret>[\w-]{{30,}})",
        example="AIzaSyD4kQ9vLx7ZtB1nH2f5gJ8mP0rS3uW6yA1", left="AIza…",
    ),
    Rule(
        id="registry-token", what="tokens of npm, PyPI, Hugging Face, Docker Hub and SendGrid",
        needles=("npm_", "pypi-", "hf_", "dckr_pat_", "sg."),
        pattern=rf"{_ALONE}(?:npm_|pypi-|hf_|dckr_pat_|SG\.)(?P<secret>[\w-]{{20,}}(?:\.[\w-]+)*)",
        example="npm_aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z", left="npm_…",
    ),
    Rule(
        id="jwt", what="JSON Web Tokens", needles=("eyj",),
        pattern=rf"{_ALONE}eyJ(?P<secret>[\w-]{{8,}}\.[\w-]{{4,}}\.[\w-]*)",
        example="eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN", left="eyJ…",
    ),
    Rule(
        id="authorization", what="an Authorization header, and any bearer token",
        needles=("authorization", "bearer"),
        pattern=r"(?:authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?(?:(?:basic|bearer|token|digest|apikey|negotiate)[ ]+)?|\bbearer[ ]+)"
        rf"(?!(?:basic|bearer|token|digest|apikey|negotiate)\b)(?P<secret>{_BARE}{{4,}}+)",
        example="Authorization: Bearer mF_9.B5f-4.1JqM", left="Authorization: Bearer …",
    ),
    Rule(
        id="header", what="headers that hold keys or cookies",
        needles=("api-key", "-token", "cookie"),
        pattern=rf"{_START}(?:(?:x-)?(?:api-key|auth-token|access-token|private-token|csrf-token|amz-security-token)|(?:set-)?cookie)"
        rf"[ ]?:[ ]*(?P<secret>{_BARE}++)",
        example="X-Api-Key: 9f8e7d6c", left="X-Api-Key: …",
    ),
    Rule(
        id="url-password", what="a password in an address",
        needles=("://",),
        pattern=r"(?<![A-Za-z0-9+.-])[a-z][a-z0-9+.-]{1,31}://[^\s/:@'\"$`]*:(?P<secret>[^\s/@'\"$`\\;|&<>()]++)(?=@)",
        example="postgres://app:hunter2@db.example/app", left="postgres://app:…@db.example/app",
    ),
    Rule(
        id="option", what="the value of an option whose name says so",
        needles=_NOUNS,
        pattern=rf"{_START}{OPTION}(?:=|[ \t]+(?!-))(?P<secret>{VALUE})",
        example="--db-password=hunter2 --token t0k3n", left="--db-password=… --token …",
    ),
    Rule(
        id="variable", what="the value of a variable, a parameter or a field whose name says so",
        needles=_NOUNS,
        pattern=rf"(?<![\w$-]){NAME}=(?P<secret>{VALUE})(?![(\[.])",
        example="GITHUB_TOKEN=t0k3n AWS_SECRET_ACCESS_KEY='a b' make release",
        left="GITHUB_TOKEN=… AWS_SECRET_ACCESS_KEY='…' make release",
    ),
    Rule(
        id="field", what="the same in JSON, YAML and code",
        needles=_NOUNS,
        pattern=rf"(?<![\w$]){NAME}\\?[\"']?[ \t]*(?::|=>|:=|=)[ \t]*\\?[\"'](?P<secret>[^\"'\\$`\n]+)(?=\\?[\"'])",
        example='{"password": "hunter2"}', left='{"password": "…"}',
    ),
    Rule(
        id="pass-phrase", what="openssl's pass:", needles=("pass:",),
        pattern=rf"{_START}pass:(?P<secret>{VALUE})",
        example="openssl rsa -passin pass:hunter2", left="openssl rsa -passin pass:…",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What a short option means to some programs. `joined`: its value may follow at once; `apart`: as the next word.

    `after`: of a value, only what stands behind this character is secret; `needs`: only with this word before.
    """

    programs: tuple[str, ...]
    flags: tuple[str, ...]
    joined: bool = True
    apart: bool = True
    after: str = ""
    needs: str = ""


FLAGS = (
    Flag(
        programs=(
            "mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlshow", "mysqlcheck", "mysqlslap", "mysqlpump", "mysqlbinlog",
            "mariadb", "mariadb-dump", "mariadb-admin", "mariadb-import", "mariadb-show", "mariadb-check",
        ),
        flags=("-p",), apart=False,
    ),
    Flag(programs=("sshpass", "mongo", "mongosh", "mongodump", "mongorestore"), flags=("-p",)),
    Flag(programs=("redis-cli",), flags=("-a",), joined=False),
    Flag(programs=("docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras"), flags=("-p",), needs="login"),
    Flag(programs=("curl",), flags=("-u", "-U", "--user", "--proxy-user"), after=":"),
    Flag(programs=("smbclient", "rpcclient"), flags=("-U", "--user"), after="%"),
    Flag(programs=("zip", "unzip", "sqlcmd", "bcp"), flags=("-P",)),
    Flag(programs=("7z", "7za", "7zz", "7zr", "rar", "unrar"), flags=("-p", "-hp"), apart=False),
    Flag(programs=("ldapsearch", "ldapmodify", "ldapadd", "ldapdelete", "ldappasswd", "ldapwhoami"), flags=("-w",)),
)  # fmt: skip

# Their --password takes a value after `=` only; the next word is something else.
ASK_FOR_PASSWORD = frozenset((
    *FLAGS[0].programs, "psql", "pg_dump", "pg_dumpall", "pg_restore", "pg_basebackup", "createdb", "dropdb", "createuser",
    "dropuser", "vacuumdb", "reindexdb", "clusterdb", "pg_isready", "initdb",
))  # fmt: skip
