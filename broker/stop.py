"""How work that is under way is ended from another thread: by whoever asked for it, and waits no more."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stop:
    """An order to stop, which may come before there is anything to stop."""

    def __init__(self) -> None:
        """Nobody has asked for it yet."""
        self.asked = False
        self._lock = threading.Lock()
        self._orders: list[Callable[[], object]] = []

    def does(self, order: Callable[[], object]) -> None:
        """Have something done when it is asked for: at once, if it was already. It must only wake somebody."""
        with self._lock:
            if not self.asked:
                self._orders.append(order)
                return
        order()

    def ask(self) -> None:
        """Ask for it. A second time does nothing."""
        with self._lock:
            if self.asked:
                return
            self.asked = True
            orders = list(self._orders)
        for order in orders:
            order()
