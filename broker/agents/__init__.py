"""What is known of each agent, as data: how it is started, where its model is, what it may do by itself (docs/agents.md)."""
