"""Sandboxes for other people's frameworks, in their own words (docs/integrations.md).

One module a framework, loaded by that framework only: each needs the extra of its name. In: what the framework asks of a
sandbox. Out: what it expects, errors included. Nothing here decides anything: every program and file goes through
broker.api, where it is judged and recorded.
"""
