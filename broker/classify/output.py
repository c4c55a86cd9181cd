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
    if name in _FILTERS:
        return stdin.names if stdin is not None else ()
    texts = [word.text for word in words[1:]]
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
        return stdin.names if stdin is not None else ()
    if name in ("fd", "fdfind"):
        return _below(texts)
    if name == "git" and any(text in ("ls-files", "--name-only", "diff", "ls-tree") for text in texts):
        return ("./" + TAME + UNKNOWN,)
    return ()


_FILTERS = frozenset(["sort", "head", "tail", "uniq", "cat", "tee", "shuf", "tac", "less", "more", "pv"])


def _below(texts: list[str]) -> tuple[str, ...]:
    """Names somewhere below the folders given (or the working directory)."""
    roots = [text for text in texts[1:] if text.startswith(("/", "~", "."))] or ["."]
    return tuple(root.rstrip("/") + "/" + TAME + UNKNOWN for root in roots[:4])


def _found(words: list[Word]) -> tuple[str, ...]:
    roots: list[str] = []
    for word in words[1:]:
        if word.text.startswith(("-", "(", "!")):
            if word.text in ("-H", "-L", "-P"):
                continue
            break
        roots.append(word.text)
    texts = [word.text for word in words]
    suffix, narrowed = "", False
    for at, text in enumerate(texts[:-1]):
        if text in (
            "-name",
            "-iname",
            "-path",
            "-regex",
            "-wholename",
            "-ipath",
            "-newer",
            "-mtime",
            "-mmin",
            "-size",
            "-maxdepth",
            "-empty",
            "-atime",
            "-ctime",
        ):
            narrowed = narrowed or text != "-maxdepth"
            pattern = texts[at + 1]
            if (
                text in ("-name", "-iname")
                and not re.search(r"[\[\]?]", pattern)
                and texts.count("-name") + texts.count("-iname") == 1
            ):
                suffix = pattern.rsplit("*", 1)[-1] if "*" in pattern else "/" + pattern
    piece = (TAME if narrowed and not suffix else "") + UNKNOWN + suffix if narrowed else UNKNOWN
    return tuple((root.rstrip("/") or "") + "/" + piece for root in (roots or ["."])[:4])


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
