"""Readers for databases' clients: the statements given as text, and what their own commands (`\\!`, `.shell`) do."""

from __future__ import annotations

import re

from broker.classify.call import Call, like, reader
from broker.classify.commands import judge_parsed
from broker.classify.grammar import Parsed, parse
from broker.classify.risk import Risk
from broker.classify.roles import default_why, judge_options
from broker.classify.scope import TAME, UNKNOWN, shown
from broker.classify.word import Word

# Each alternative takes what is left of the text when its end is missing: no text is gone through twice.
_STRING = r"""(?P<text>'(?:[^']|'')*(?:'|\Z))
    |(?P<name>"(?:[^"]|"")*(?:"|\Z)|`[^`]*(?:`|\Z))
    |(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))"""
_ESCAPED_STRING = r"""(?P<text>'(?:[^'\\]|''|\\.|\\\Z)*(?:'|\Z))
    |(?P<name>"(?:[^"\\]|""|\\.|\\\Z)*(?:"|\Z)|`[^`]*(?:`|\Z))
    |(?P<comment>--(?=\s|\Z)[^\n]*|\#[^\n]*|/\*(?!!).*?(?:\*/|\Z))"""
_DOLLARS = r"""(?P<escaped>(?<![A-Za-z0-9_][eE])(?<=[eE])'(?:[^'\\]|''|\\.|\\\Z)*(?:'|\Z))
    |(?P<code>\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z))"""
_REST = r"""(?P<end>;)
    |(?P<rest>[^'"`$/;#-]+|.)"""
_DIALECTS = {
    "psql": f"{_DOLLARS}|{_STRING}|{_REST}",  # E'it\'s', $$ … $$
    "mysql": f"{_ESCAPED_STRING}|{_REST}",  # 'it\'s', "text", # comment, /*! statement */
    "sqlite": f"{_STRING}|{_REST}",
}


def statements(text: str, dialect: str) -> list[tuple[str, list[str]]]:
    """Cut SQL into statements: each in capitals, with its literals taken out, and these."""
    found: list[tuple[str, list[str]]] = []
    words: list[str] = []
    literals: list[str] = []
    for piece in re.compile(_DIALECTS[dialect], re.VERBOSE | re.DOTALL).finditer(text + "\n;"):
        match piece.lastgroup:
            case "text" | "escaped":
                literals.append(piece[0].strip("'"))
                words.append("''")
            case "name":
                words.append('""')
            case "code" | "tag":
                words.append("$$")
            case "comment":
                words.append(" ")
            case "end":
                statement = " ".join("".join(words).upper().replace("/*!", " ").split()).lstrip(
                    "( 0123456789"
                )
                if statement:
                    found.append((statement, literals))
                words, literals = [], []
            case _:
                words.append(piece[0])
    if words:  # a literal or a comment that never ends
        found.append((" ".join("".join(words).upper().split()), literals))
    return found


_RULES: tuple[tuple[str, Risk, str], ...] = (
    (r"\b(?:DROP|TRUNCATE)\b(?!\s*\()", Risk.DESTRUCTIVE, "drops or empties what it names"),
    (r"\bDELETE\s+FROM\b|^DELETE\b", Risk.DESTRUCTIVE, "deletes every row"),
    (r"^UPDATE\b", Risk.DESTRUCTIVE, "changes every row"),
    (r"^(?:SHUTDOWN|PURGE|RESET\s+(?:MASTER|BINARY|REPLICA|SLAVE)|KILL)\b", Risk.DESTRUCTIVE, "ends or loses what others use"),
    (r"^(?:GRANT|REVOKE|SET\s+PASSWORD|SET\s+(?:GLOBAL|PERSIST)|ALTER\s+SYSTEM|REASSIGN)\b", Risk.SYSTEM_WRITE, "changes access or the server"),
    (r"^(?:CREATE|ALTER|DROP|RENAME)\s+(?:OR\s+REPLACE\s+)?(?:USER|ROLE|LOGIN|GROUP)\b", Risk.SYSTEM_WRITE, "changes accounts"),
    (r"\bINTO\s+(?:OUTFILE|DUMPFILE)\b|^COPY\b.*\b(?:TO|FROM)\s+''|\b(?:LOAD_FILE|PG_READ_(?:BINARY_)?FILE|PG_LS_DIR|LO_IMPORT|LO_EXPORT)\s*\(|^LOAD\s+DATA\s+INFILE|^BULK\s+INSERT|\bOPENROWSET\b", Risk.SYSTEM_WRITE, "reads or writes files of the server's machine"),
    (r"\bPROGRAM\s+''|\bXP_CMDSHELL\b|\bSYS_(?:EXEC|EVAL)\b|\bSP_OACREATE\b|^(?:DO|CALL|EXEC|EXECUTE|PREPARE|BEGIN\s+(?!TRAN|WORK|;|$))\b|^CREATE\b[^(]*\b(?:FUNCTION|PROCEDURE|TRIGGER|EVENT|EXTENSION|LANGUAGE|AGGREGATE|PLUGIN)\b|^INSTALL\s+(?:PLUGIN|COMPONENT)|^LOAD\s+''", Risk.CODE_EXECUTION, "runs or keeps code on the server"),
    (r"\bDBLINK\w*\s*\(|\bPG_TERMINATE_BACKEND\b", Risk.SYSTEM_WRITE, "reaches beyond this database"),
)  # fmt: skip
_COMPILED: list[tuple[re.Pattern[str], Risk, str]] = []


_EVERY_ROW = re.compile(r"\bWHERE\s+(?:TRUE|1|1\s*=\s*1|''\s*=\s*'')\s*$")


def judge_sql(call: Call, text: str, dialect: str) -> None:
    """Add what these statements do on a server. A dialect that is not known is read both ways."""
    if UNKNOWN in text:
        call.add(Risk.CODE_EXECUTION, "sql.dynamic", "What the statement says is only known when it runs.")
    if not _COMPILED:
        _COMPILED.extend((re.compile(pattern, re.DOTALL), risk, why) for pattern, risk, why in _RULES)
    for one in [dialect] if dialect else ["psql", "mysql"]:
        for statement, _ in statements(text, one):
            call.inquiry.count(1)
            _judge_statement(call, statement)


def _judge_statement(call: Call, statement: str) -> None:
    narrowed = (
        statement.startswith(("DELETE", "UPDATE"))
        and re.search(r"\bWHERE\b", statement) is not None
        and _EVERY_ROW.search(statement) is None
    )
    first = statement.split(" ", 1)[0]
    for pattern, risk, why in _COMPILED:
        if pattern.search(statement) and not (narrowed and why.endswith("every row")):
            rule = f"sql.{first.lower()}" if first.isalpha() else "sql"
            call.add(risk, rule, f"The statement {shown(statement[:40])} {why}.")


@reader("sql")
def _sql(call: Call) -> None:
    """A client of a server: the statements that options or its input give, or what a person will type."""
    entry = call.entry
    parsed = parse(call, call.words[1:])
    if "local" in call.marks:
        judge_options(call, parsed)
        return
    for risk in entry.effects:
        call.add(risk, f"program.{entry.name}", entry.why or default_why(entry, risk))
    judge_options(call, parsed)
    texts = [value for option, value in parsed.options if "sql" in option.marks and value is not None]
    if "sql_operands" in entry.raw:
        texts += parsed.operands[entry.raw["sql_operands"] :]
    dialect = entry.raw.get("dialect", "")
    for word in texts:
        _judge_text(call, word.text, dialect)
    if not texts and "script" not in call.marks:
        _judge_input(call, dialect)


def _judge_input(call: Call, dialect: str) -> None:
    stdin = call.scope.stdin
    if stdin is not None and stdin.text is not None:
        _judge_text(call, stdin.text, dialect)
        return
    call.add(
        Risk.CODE_EXECUTION,
        "sql.input",
        f"{call.entry.name} does what its input says, and can start programs for it.",
    )


def _judge_text(call: Call, text: str, dialect: str) -> None:
    if dialect == "psql":
        text = re.sub(
            r"\\([a-z_!?]+)([^\n\\]*)", lambda found: _backslash(call, found[1], found[2].strip()), text
        )
    elif dialect == "mysql":
        for line in text.split("\n"):
            _mysql_line(call, line.strip())
        text = re.sub(r"\\[!.TPe].*", "", text)
    elif dialect == "mongo":
        _judge_mongo(call, text)
        return
    judge_sql(call, text, dialect)


def _backslash(call: Call, name: str, rest: str) -> str:
    """One of psql's own commands. Returns what stands in its place for the statements around it."""
    call.inquiry.count(1)
    for command in re.findall(r"`([^`]*)`", rest):
        call.shell_text(command)
        call.add(Risk.CODE_EXECUTION, "sql.backslash", "psql runs what stands in backticks.")
    words = rest.split()
    last = like(call.words[0], words[-1].strip("';")) if words else None
    match name:
        case "!":
            call.add(Risk.CODE_EXECUTION, "sql.backslash", "\\! starts a shell.")
            call.shell_text(rest)
        case "i" | "ir" | "include" | "include_relative" | "lo_import":
            if last is not None:
                call.read(last)
            if name != "lo_import":
                call.add(Risk.CODE_EXECUTION, "sql.backslash", f"\\{name} runs the commands of a file.")
        case "o" | "out" | "w" | "write" | "s" | "g" | "gx" | "lo_export":
            if rest.startswith("|"):
                call.add(Risk.CODE_EXECUTION, "sql.backslash", f"\\{name} starts a program.")
                call.shell_text(rest[1:])
            elif last is not None:
                call.write(last)
        case "copy":
            _copied(call, rest)
        case "e" | "edit" | "ef" | "ev" | "gexec" | "setenv":
            call.add(Risk.CODE_EXECUTION, "sql.backslash", f"\\{name} runs what this text does not show.")
        case "password":
            call.add(Risk.SYSTEM_WRITE, "sql.backslash", "\\password changes an account.")
    return ";"


def _copied(call: Call, rest: str) -> None:
    """`\\copy t from 'file'`, `to program 'command'`."""
    found = re.search(r"\b(from|to)\s+(program\s+)?('(?:[^']|'')*'|\S+)", rest, re.IGNORECASE)
    if found is None:
        return
    direction, program, text = found[1].lower(), found[2], found[3].strip("'")
    if program:
        call.add(Risk.CODE_EXECUTION, "sql.backslash", "\\copy starts a program.")
        call.shell_text(text)
    elif text.lower() not in ("stdin", "stdout", "pstdin", "pstdout"):
        word = like(call.words[0], text)
        if direction == "from":
            call.read(word)
        else:
            call.write(word)


_MYSQL_LINE = re.compile(
    r"(system\b|\\!|source\b|\\\.|tee\b|\\T|pager\b|\\P|edit\b|\\e)\s*(.*)", re.IGNORECASE
)


def _mysql_line(call: Call, line: str) -> None:
    """One of mysql's own commands."""
    found = _MYSQL_LINE.match(line)
    if found is None:
        return
    name, rest = found[1].lower() if found[1][0] != "\\" else found[1], found[2].rstrip("; ")
    if name in ("system", "\\!", "pager", "\\P"):
        call.add(Risk.CODE_EXECUTION, "sql.backslash", f"{name} starts a program.")
        call.shell_text(rest)
    elif name in ("tee", "\\T"):
        call.write(like(call.words[0], rest))
    else:
        if rest:
            call.read(like(call.words[0], rest))
        call.add(Risk.CODE_EXECUTION, "sql.backslash", f"{name} runs what this text does not show.")


_MONGO_LOSES = re.compile(
    r"\.(?:drop|dropDatabase|dropIndexes?|dropUser|deleteMany|deleteOne|remove|findOneAndDelete|shutdownServer)\s*\("
)
_MONGO_ACCESS = re.compile(
    r"\.(?:createUser|updateUser|changeUserPassword|grantRolesToUser|revokeRolesFromUser|dropUser)\s*\("
)


def _judge_mongo(call: Call, text: str) -> None:
    """What mongosh is told is JavaScript, with files and processes at hand."""
    call.add(Risk.CODE_EXECUTION, "interpreter.code", f"{call.name} runs code given as text.")
    if _MONGO_LOSES.search(text):
        call.add(Risk.DESTRUCTIVE, "sql.mongo", "The code deletes documents or collections.")
    if _MONGO_ACCESS.search(text):
        call.add(Risk.SYSTEM_WRITE, "sql.mongo", "The code changes accounts.")


_READS = re.compile(
    r"(?:SELECT|EXPLAIN|VALUES|FROM|DESCRIBE|SHOW|SUMMARIZE)\b|PRAGMA\b[^=]*$|WITH\b(?!.*\b(?:INSERT|UPDATE|DELETE)\b)",
    re.DOTALL,
)


@reader("sqlite")
def _sqlite(call: Call) -> None:
    """sqlite3 and duckdb: a database in a file, judged by its path. The CLI's own commands begin with a dot."""
    parsed = parse(call, call.words[1:])
    judge_options(call, parsed)
    if "local" in call.marks:
        return
    database = parsed.operands[0] if parsed.operands else None
    texts = [value for option, value in parsed.options if "sql" in option.marks and value is not None]
    texts += parsed.operands[1:]
    writes = False
    if texts:
        for word in texts:
            writes |= _judge_sqlite(call, word.text)
    elif call.scope.stdin is not None and call.scope.stdin.text is not None:
        writes = _judge_sqlite(call, call.scope.stdin.text)
    else:
        writes = True
        call.add(
            Risk.CODE_EXECUTION,
            "sql.input",
            f"{call.entry.name} does what its input says, and .shell is part of that.",
        )
    if database is None or database.text in ("", ":memory:"):
        return
    call.read(database)
    if writes and "read_only" not in call.marks:
        call.write(database)


def _judge_sqlite(call: Call, text: str) -> bool:
    """Add what a text does besides its database; return whether that is written."""
    if UNKNOWN in text:
        call.add(Risk.CODE_EXECUTION, "sql.dynamic", "What the statement says is only known when it runs.")
    writes = UNKNOWN in text
    plain: list[str] = []
    for line in text.split("\n"):
        if line.startswith("."):
            call.inquiry.count(1)
            writes |= _dot_command(call, line[1:])
        else:
            plain.append(line)
    for statement, literals in statements("\n".join(plain), "sqlite"):
        call.inquiry.count(1)
        writes |= _READS.match(statement) is None
        _sqlite_files(call, statement, literals)
    return writes


_DOT_HARMLESS = frozenset(
    "help headers header mode tables table schema fullschema indexes indices databases dump echo eqp explain timer show "
    "stats width nullvalue separator bail changes limit lint print prompt quit exit sha3sum selftest auth dbinfo "
    "dbconfig connection parameter progress scanstats version vfsinfo vfslist vfsname timeout columns maxrows maxwidth "
    "large_number_rendering thousand_sep decimal_sep highlight constant keyword".split()
)
_DOT_CODE = frozenset(("shell", "system", "sh", "load", "read", "edit", "excel", "www", "e", "x", "w"))


def _dot_command(call: Call, line: str) -> bool:
    """One of sqlite3's own commands; return whether it writes the database. Any beginning of a name will do."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    words = [word.strip("'\"") for word in rest.split()]
    last = like(call.words[0], words[-1]) if words else None
    if name in ("shell", "system", "she", "shel", "sys", "syst", "syste"):
        call.add(Risk.CODE_EXECUTION, "sql.dot", f".{name} starts a shell.")
        call.shell_text(rest)
    elif rest.lstrip("'\"").startswith("|"):
        call.add(Risk.CODE_EXECUTION, "sql.dot", f".{name} starts a program.")
        call.shell_text(rest.strip("'\"")[1:])
    elif name in _DOT_CODE:
        if last is not None:
            call.read(last)
        call.add(Risk.CODE_EXECUTION, "sql.dot", f".{name} runs what this text does not show.")
    elif name in (
        "output",
        "once",
        "log",
        "trace",
        "save",
        "backup",
        "clone",
        "open",
        "cd",
        "out",
        "o",
        "save",
    ):
        if last is not None and last.text not in ("stdout", "stderr", "off"):
            call.write(last)
    elif name == "import":
        if words:
            call.read(like(call.words[0], words[-2] if len(words) > 1 else words[-1]))
        return True
    elif name == "restore":
        if last is not None:
            call.read(last)
        return True
    elif name not in _DOT_HARMLESS:
        call.add(Risk.UNKNOWN, "sql.dot", f"There is no command .{shown(name)} that we know.")
    return False


def _sqlite_files(call: Call, statement: str, literals: list[str]) -> None:
    """Files that a statement names: functions of the command line program, ATTACH, VACUUM INTO, duckdb's COPY."""
    if re.search(r"\b(?:EDIT|LOAD_EXTENSION|FTS3_TOKENIZER)\s*\(|^LOAD\b", statement):
        call.add(Risk.CODE_EXECUTION, "sql.function", "The statement loads or starts a program.")
    if re.search(r"^(?:FORCE )?INSTALL\b", statement):
        call.add(Risk.INSTALL, "sql.install", "It brings in an extension.")
    writefile = re.search(r"\bWRITEFILE\s*\(", statement)
    writes = writefile or re.search(
        r"^ATTACH\b|\bINTO ''$|^(?:COPY|EXPORT|IMPORT)\b.*(?<!FROM )''", statement
    )
    reads = re.search(r"\b(?:READFILE|READ_\w+|PARQUET_SCAN|FSDIR|GLOB)\s*\(|\bFROM ''", statement)
    if (writefile and not literals) or ((writes or reads) and len(literals) > _MOST_FILES):
        call.add(Risk.LOCAL_WRITE, "sql.function", "The statement writes a file.")
        call.add(Risk.UNKNOWN, "sql.function", "Which files the statement means is only known when it runs.")
    for literal in literals[:_MOST_FILES]:
        word = like(call.words[0], literal)
        if literal.startswith(("http://", "https://", "s3://", "gs://", "azure://")):
            call.add(Risk.NETWORK_EGRESS, "network.host", f"The statement reaches {shown(literal)}.")
        elif writes:
            call.write(word)
        elif reads:
            call.read(word)


_MOST_FILES = 64


@reader("redis")
def _redis(call: Call) -> None:
    """redis-cli: commands in any case, as operands or on its input."""
    parsed = parse(call, call.words[1:])
    if "local" in call.marks:
        return
    stdin = call.scope.stdin
    if parsed.rest:
        _redis_command(call, parsed, parsed.rest)
    elif stdin is not None and stdin.text is not None:
        for line in stdin.text.split("\n"):
            words = [like(call.words[0], word) for word in line.split()]
            if words:
                _redis_command(call, parsed, words)
    else:
        judge_parsed(call, call.entry, parsed)
        if "looks" not in call.marks:
            call.add(Risk.CODE_EXECUTION, "sql.input", f"{call.entry.name} does what its input says.")


def _redis_command(call: Call, parsed: Parsed, words: list[Word]) -> None:
    if TAME in words[0].text:
        words = [like(words[0], UNKNOWN)]
    parsed.rest = [like(word, word.text.upper()) for word in words[:2]] + words[2:]
    judge_parsed(call, call.entry, parsed)
