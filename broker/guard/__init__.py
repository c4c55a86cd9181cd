"""The guard: the C program that is process 1 in the sandbox, its protocol (PROTOCOL.md) and its build."""
