"""Step 2: which variables hold a secret, by their names."""

from __future__ import annotations

import re

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|APIKEY|API_KEY|PRIVATE_KEY|ACCESS_KEY|SECRET_KEY|"
    r"SECRET_ACCESS_KEY|ACCESS_KEY_ID|ENCRYPTION_KEY|SIGNING_KEY|AUTH_KEY|CREDENTIALS?|SESSION_KEY|PAT)$|"
    r"(?:^|_)(?:password|passwd|secret|api_key|private_key|access_token|auth_token)$"
)
_SECRET_NAMES = frozenset(
    ["DATABASE_URL", "PGPASSWORD", "MYSQL_PWD", "REDIS_URL", "MONGODB_URI", "SENTRY_DSN", "NPM_AUTH"]
)


def is_secret_name(name: str) -> bool:
    """Whether a variable's name says that it holds a secret."""
    return name in _SECRET_NAMES or bool(_SECRET_NAME.search(name))
