"""The fixtures of the suites of the tools and of MCP."""

from tool_clients import (  # noqa: F401 - fixtures are used by name
    broker,
    bubble,
    engine,
    folder,
    make_broker,
    open_tools,
    opened,
)
