"""Step 2: what a few harmless commands print, so that `$(pwd)`, `echo … | sh` and `base64 -d | sh` are read through."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode

from broker.classify.context import Context
from broker.classify.paths import normalise, resolve
from broker.classify.scope import TAME, UNKNOWN, Scope, Stdin
from broker.classify.word import Word
from broker.classify.words import decode_ansi

_TAME_PRINTERS = frozenset(
    [
        "date",
        "nproc",
        "id",
        "whoami",
        "hostname",
        "uname",
        "wc",
        "seq",
        "expr",
        "bc",
        "getconf",
        "arch",
        "tput",
        "stat",
        "cksum",
        "tty",
        "logname",
        "md5sum",
        "sha1sum",
        "sha256sum",
        "uuidgen",
        "jot",
        "factor",
        "grep",
    ]
)
MAX_OUTPUT = 16 * 1024


def of(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    """Return what this command prints, with unknown pieces marked, or None if nothing is known."""
    name = words[0].text
    if name not in _PRINTERS:
        if name in _TAME_PRINTERS and _prints_its_own(name, words[1:], stdin):
            return TAME
        names = names_of(words, stdin, scope, context)
        return "\n".join(names) if names else None
    arguments = words[1:]
    text = _PRINTERS[name](arguments, stdin, scope, context)
    if text is None and (names := names_of(words, stdin, scope, context)):
        text = "\n".join(names)
    return text if text is None or len(text) <= MAX_OUTPUT else None


def _prints_its_own(name: str, arguments: list[Word], stdin: Stdin | None) -> bool:
    """Whether what a printer of numbers and names prints comes from itself, not from a text that it was given."""
    texts = [word.text for word in arguments]
    match name:
        case "date":
            return not any(text.startswith("+") and ("/" in text or text[1:2] == "-") for text in texts)
        case "stat":  # %n, %N, %m: names and mount points
            formats = [text for text in texts if "%" in text]
            return bool(formats) and not any(
                re.search(r"/|%-?\d*[nNm]|^-[^c-]|^[^-%]", text) for text in formats
            )
        case "seq" | "jot":
            return all(re.fullmatch(r"-?[\d.]+|-w|\W", text) for text in texts)
        case "expr":
            return all(re.fullmatch(r"[\d+*/%()<>=!\-\U0010ffff]+|length", text) for text in texts)
        case "bc":
            return stdin is None or stdin.text is None or '"' not in stdin.text
        case "getconf":
            return not any("PATH" in text for text in texts)
        case "grep":
            return (
                any(re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*|--count", text) for text in texts) and len(texts) < 4
            )
        case "wc" | "cksum" | "md5sum" | "sha1sum" | "sha256sum" | "factor":
            return not any("/" in text or UNKNOWN in text for text in texts)
    return True


def names_of(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> tuple[str, ...]:
    """Return the paths that this command prints, with unknown pieces marked; empty if they cannot be said."""
    name = words[0].text
    if name in ("find", "gfind"):
        return _found(words)
    texts = [word.text for word in words[1:]]
    if name in _FILTERS:
        return stdin.names if stdin is not None and not _reads_files(name, texts) else ()
    if name == "ls":
        if any(
            not text.startswith("-") and word.glob for text, word in zip(texts, words[1:], strict=True)
        ) or any(re.fullmatch(r"-[a-zA-Z1]*d[a-zA-Z1]*", text) for text in texts):
            return tuple(text for text in texts if not text.startswith("-"))
        return ("./" + TAME,)
    if name in ("grep", "rg", "ag", "ack", "egrep", "fgrep"):
        lists = any(
            re.fullmatch(r"-[a-zA-Z0-9]*[lL][a-zA-Z0-9]*", text) or text.startswith("--files")
            for text in texts
        )
        if lists:
            return _below(texts)
        passes = stdin is not None and not any(_OTHER_THAN_LINES.fullmatch(text) for text in texts)
        return stdin.names if stdin is not None and passes and not _reads_files("grep", texts) else ()
    if name in ("fd", "fdfind"):
        return _below(texts)
    if name == "git" and any(text in ("ls-files", "--name-only", "diff", "ls-tree") for text in texts):
        return ("./" + TAME + UNKNOWN,)
    return ()


_FILTERS = frozenset(["sort", "head", "tail", "uniq", "cat", "tee", "shuf", "tac", "less", "more", "pv"])


_OTHER_THAN_LINES = re.compile(r"-[a-zA-Z]*[of].*|--only-matching|--file(?:=.*)?|-r.+|--replace(?:=.*)?")
"""What makes a search print something else than the lines that it was given."""
_VALUE_FOLLOWS = {
    "grep": "ABCem",
    "head": "cn",
    "shuf": "n",
    "sort": "STkt",
    "tac": "s",
    "tail": "cn",
    "uniq": "fsw",
}
"""The short options of filters behind which a value stands, that is no file."""


def _reads_files(name: str, texts: list[str]) -> bool:
    """Whether a filter is given files to read, or (of shuf) words to print, and not what comes in."""
    if name == "tee":
        return False
    if any(text.startswith(("--files0", "--echo", "--input-range")) for text in texts):
        return True
    takes = _VALUE_FOLLOWS.get(name, "")
    operands = 0
    for before, text in zip(["", *texts], texts, strict=False):
        is_value = before[:1] == "-" and before[1:2] != "-" and before[-1] in takes
        operands += text[:1] != "-" and not is_value
    if name == "grep" and not any(re.fullmatch(r"-[a-zA-Z]*e.*|--regexp(?:=.*)?", text) for text in texts):
        operands -= 1  # the pattern
    return operands > 0


_NO_EXPRESSION = re.compile(r"--files|-[a-zA-Z]*[ef].*|--regexp(?:=.*)?|--file(?:=.*)?")
"""What makes a search take its first operand for a file."""
_EXPRESSION_FOLLOWS = re.compile(r"-[a-zA-Z]*e|--regexp")


def _below(texts: list[str]) -> tuple[str, ...]:
    """Names somewhere below the folders given (or the working directory)."""
    searched = next((at for at, text in enumerate(texts) if text[:1] != "-"), -1)
    if any(_NO_EXPRESSION.fullmatch(text) for text in texts):
        searched = -1
    roots = [
        text
        for at, text in enumerate(texts)
        if text.startswith(("/", "~", ".", UNKNOWN))
        and at != searched
        and not (at and _EXPRESSION_FOLLOWS.fullmatch(texts[at - 1]))
    ]
    # `-C/etc`, `--search-path=/etc`: a folder as an option's value, too.
    roots += [text[text.index("/") :] for text in texts if re.match(r"-\w/|--[a-z-]+=/", text)]
    return tuple(root.rstrip("/") + "/" + TAME + UNKNOWN for root in roots or ["."])


def _found(words: list[Word]) -> tuple[str, ...]:
    roots: list[str] = []
    texts = [word.text for word in words]
    at = 1
    while at < len(texts) and (re.fullmatch(r"-[HLPEXdsx]+|-O\d|-D|-f|--", texts[at])):
        if texts[at] == "-f" and at + 1 < len(texts):
            roots.append(texts[at + 1])
        at += 2 if texts[at] in ("-D", "-f") else 1
    while at < len(texts) and not texts[at].startswith(("-", "(", "!")):
        roots.append(texts[at])
        at += 1
    rest = texts[at:]
    if "-files0-from" in rest:
        return ()
    suffix, narrowed = _names_found(rest)
    piece = (TAME if narrowed and not suffix else "") + UNKNOWN + suffix
    below = [(root.rstrip("/"), (root.rstrip("/") or "") + "/" + piece) for root in roots or ["."]]
    if "-printf" not in rest:
        return tuple(path for _, path in below)
    form = _ONE_NAME.fullmatch(rest[rest.index("-printf") + 1]) if rest[-1] != "-printf" else None
    if form is None or rest.count("-printf") > 1 or "-print" in rest or "-print0" in rest:
        return ()  # a format can print anything in front of a name
    what = form[2]
    names = [path if what == "p" else piece if what == "P" else root + "/" + UNKNOWN for root, path in below]
    return tuple(form[1] + name + form[3] for name in names)


_ONE_NAME = re.compile(r"([^\s%\\'\"]*)%([pPh])([\w./-]*)(?:\\[n0])?")
_ALTERNATIVE = frozenset(("-o", "-or", ","))
_NARROWING = frozenset(
    "-name -iname -path -regex -iregex -wholename -ipath -newer -mtime -mmin -size -empty -atime -ctime".split()
)
_ALL_NAMES = frozenset(("*", "**", "./*", "?*", ".*", "*/*"))


def _names_found(tests: list[str]) -> tuple[str, bool]:
    """How every name that find prints ends, if that is known, and whether only a part of all files is printed."""
    narrowed, whole = False, True
    for at, text in enumerate(tests):
        if text in _ALTERNATIVE:
            whole, narrowed = whole and narrowed, False
        elif text in _NARROWING and (not at or tests[at - 1] not in ("!", "-not")):
            narrowed = (
                narrowed or text == "-empty" or tests[at + 1 : at + 2] not in ([name] for name in _ALL_NAMES)
            )
    patterns = [at for at, text in enumerate(tests[:-1]) if text in ("-name", "-iname")]
    if not (narrowed and whole) or len(patterns) != 1 or not _ALTERNATIVE.isdisjoint(tests):
        return "", narrowed and whole
    pattern = tests[patterns[0] + 1]
    if tests[patterns[0] - 1 : patterns[0]] in (["!"], ["-not"]) or re.search(r"[\[\]?]", pattern):
        return "", True
    return pattern.rsplit("*", 1)[-1] if "*" in pattern else "/" + pattern, True


def _echo(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    escapes = False
    while words and re.fullmatch(r"-[neE]+", words[0].text):
        escapes = "e" in words[0].text
        words = words[1:]
    if any(word.glob for word in words):
        return None
    text = " ".join([word.text for word in words])
    if "\\" in text and not escapes:
        return None  # sh's and zsh's echo decode it without being asked
    return (decode_ansi(text) if escapes else text) + "\n"


def _printf(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    if words and words[0].text == "--":
        words = words[1:]
    if not words or words[0].text.startswith("-") or any(word.glob for word in words):
        return None
    form, values = decode_ansi(words[0].text), [word.text for word in words[1:]]
    pieces = re.split(r"%([%sbdq])", form)
    if "%" in "".join(pieces[0::2]):
        return None
    out: list[str] = []
    while True:
        used = 0
        for at, piece in enumerate(pieces):
            if at % 2 == 0:
                out.append(piece)
            elif piece == "%":
                out.append("%")
            else:
                value = values[used] if used < len(values) else ""
                out.append(decode_ansi(value) if piece == "b" else value)
                used += 1
        values = values[used:]
        if not values or not used:
            return "".join(out)


def _cat(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    if all(word.text == "-" for word in words) and stdin is not None:
        return stdin.text
    return None


def _pwd(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    return scope.cwd if scope.cwd is not None else UNKNOWN


def _mktemp(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    scratch = context.scratch[0] if context.scratch else "/tmp"
    templates = [word.text for word in words if not word.text.startswith("-")]
    if any(word.text in ("-p", "--tmpdir") or word.text.startswith(("-p", "--tmpdir=")) for word in words):
        return UNKNOWN if len(templates) > 1 else scratch + "/" + TAME
    if templates:
        return re.sub(r"X{3,}", TAME, templates[0])
    return scratch + "/" + TAME


def _git(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    texts = [word.text for word in words]
    if texts[:1] == ["rev-parse"]:
        if "--show-toplevel" in texts:
            return context.workspace
        if "--git-dir" in texts:
            return ".git"
        return TAME
    if texts[:1] in (["merge-base"], ["describe"], ["hash-object"], ["write-tree"]):
        return TAME
    return None


def _dirname(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    if len(words) != 1 or not words[0].known:
        return UNKNOWN
    text = words[0].text.rstrip("/")
    head, slash, _ = text.rpartition("/")
    return head or ("/" if slash else ".")


def _basename(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    operands = [word for word in words if word.text[:1] != "-"]
    if len(operands) != len(words) or not 1 <= len(words) <= 2 or not all(word.known for word in words):
        return TAME if len(words) < 3 else None
    name = words[0].text.rstrip("/").rpartition("/")[2]
    return name.removesuffix(words[1].text) if len(words) == 2 and name != words[1].text else name


def _realpath(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    targets = [word for word in words if not word.text.startswith("-")]
    if len(targets) != 1:
        return UNKNOWN
    path = resolve(targets[0].text, scope.cwd, context)
    return UNKNOWN if path is None else normalise(path)


def _base64(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    decoding = any(re.fullmatch(r"-[a-z]*[dD][a-z]*|--d[a-z]*", word.text) for word in words)
    if not decoding or stdin is None or stdin.text is None:
        return None
    try:
        return b64decode(stdin.text.strip(), validate=False).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return None


def _xxd(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    flags = "".join(word.text for word in words if word.text.startswith("-"))
    if "r" not in flags or "p" not in flags or stdin is None or stdin.text is None:
        return None
    try:
        return bytes.fromhex(stdin.text.strip()).decode("utf-8", "surrogateescape")
    except ValueError:
        return None


def _rev(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    if words or stdin is None or stdin.text is None:
        return None
    return "\n".join(line[::-1] for line in stdin.text.split("\n"))


def _tee(words: list[Word], stdin: Stdin | None, scope: Scope, context: Context) -> str | None:
    return stdin.text if stdin is not None else None


_PRINTERS = {
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "tee": _tee,
    "pwd": _pwd,
    "mktemp": _mktemp,
    "git": _git,
    "basename": _basename,
    "dirname": _dirname,
    "realpath": _realpath,
    "readlink": _realpath,
    "base64": _base64,
    "xxd": _xxd,
    "rev": _rev,
}
