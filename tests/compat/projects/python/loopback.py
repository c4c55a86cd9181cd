"""Serve and connect by each name that a test may use for this machine; print those that work."""

import socket

for name in ("127.0.0.1", "::1", "localhost", socket.gethostname()):
    family, kind, *_, address = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0]
    with socket.create_server(address[:2], family=family) as server:
        socket.create_connection((name, server.getsockname()[1])).close()
        print(name)
