"""Step 2: code that is given as text to an interpreter: the secrets and protected files that it names."""

from __future__ import annotations

import re

from broker.classify import paths
from broker.classify.call import Call
from broker.classify.risk import Risk
from broker.classify.scope import UNKNOWN, shown
from broker.classify.secret_names import is_secret_name

_ENVIRON = re.compile(r"environ|getenv|process\.env|ENV\[|ENVIRON|%ENV|\benv\.", re.IGNORECASE)
_NAMES = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_QUOTED_PATH = re.compile(r"""['"`]((?:~|/|\.)[^'"`\s]{2,200})['"`]""")


def secrets_in_code(call: Call, code: str) -> None:
    """Look through code given as text for the secrets and protected files that it names."""
    if _ENVIRON.search(code):
        for name in _NAMES.findall(code):
            if is_secret_name(name):
                call.add(Risk.SYSTEM_WRITE, "secret.variable", f"The code reads {name}, named like a secret.")
                break
    if UNKNOWN in code:
        return
    for path in _QUOTED_PATH.findall(code)[:20]:
        resolved = paths.resolve(
            path.replace("~", call.inquiry.context.home, 1) if path[0] == "~" else path,
            call.scope.cwd,
            call.inquiry.context,
        )
        if resolved is None:
            continue
        entry = paths.is_secret_path(resolved, call.inquiry.context)
        if entry is not None:
            call.add(Risk.SYSTEM_WRITE, entry.rule, f"The code names {shown(path)}: {entry.why}.")
        found = paths.find_entry("persistence", resolved, path, call.inquiry.context)
        if found is not None and re.search(
            rf"(?:open\w*\(\s*['\"]{re.escape(path)}['\"]\s*,\s*['\"][wax+]"
            rf"|['\"]{re.escape(path)}['\"]\)?\.write_|>>?\s*['\"]?{re.escape(path)}|(?:write|append|copy|rename|symlink)\w*\([^)]*['\"]{re.escape(path)})",
            code,
        ):
            call.add(Risk.PERSISTENCE, found.rule, f"The code names {shown(path)}: {found.why}.")
