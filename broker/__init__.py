"""broker: runs AI agents in a container with no network, under a profile that the operator wrote."""

__version__ = "0.1.0"
