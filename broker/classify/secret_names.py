"""Step 2: which variables hold a secret, by their names."""

from __future__ import annotations

import re

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKENS?|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASSCODE|PASS|APIKEY|API_KEYS?|PRIVATE_KEY|ACCESS_KEY|"
    r"SECRET_KEY|SECRET_ACCESS_KEY|ACCESS_KEY_ID|ENCRYPTION_KEY|DECRYPTION_KEY|MASTER_KEY|SIGNING_KEY|SIGNATURE_KEY|"
    r"DEPLOY_KEY|LICENSE_KEY|AUTH_KEY|AUTHKEY|CREDENTIALS?|CREDS|SESSION_KEY|SERVICE_ACCOUNT_KEY|ACCOUNT_KEY|STORAGE_KEY|"
    r"SHARED_KEY|HMAC_KEY|JWT|BEARER|COOKIE|PAT|PWD_HASH|AUTH_CONFIG|WEBHOOK(?:_URL)?|CONNECTION_STRING|SAS_URL|DSN)$|"
    r"(?:^|_)(?:password|passwd|passphrase|secret|client_secret|api_key|apikey|private_key|access_token|auth_token|token|credentials?)$",
)
_SECRET_NAMES = frozenset(
    ["DATABASE_URL", "DB_URL", "PGPASSWORD", "MYSQL_PWD", "REDISCLI_AUTH", "REDIS_URL", "MONGODB_URI", "MONGO_URL", "POSTGRES_URL",
     "AMQP_URL", "RABBITMQ_URL", "CLOUDAMQP_URL", "ELASTICSEARCH_URL", "NPM_AUTH", "SSHPASS", "SUDO_PASS", "ANSIBLE_VAULT_PASSWORD",
     "KUBE_CONFIG_DATA", "DOCKER_AUTH_CONFIG"]
)  # fmt: skip


def is_secret_name(name: str) -> bool:
    """Whether a variable's name says that it holds a secret."""
    return name in _SECRET_NAMES or bool(_SECRET_NAME.search(name))
