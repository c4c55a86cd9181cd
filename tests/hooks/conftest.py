"""The fixtures of the hooks' suite."""

from hooked_host import host  # noqa: F401 - a fixture is used by name
