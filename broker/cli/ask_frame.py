"""What a question looks like on a screen of so many rows. In: a row of the desk. Out: lines, never more than there is room for.

Who wants what, of which class, why it was refused and which keys there are is seen always; the rest has pages. What the agent
itself says about it is shown when it is asked for, and marked.
"""

from __future__ import annotations

from typing import Any

from broker.cli.ask_line import Line
from broker.cli.question_text import LABEL, details, exact, head, named, wrapped
from broker.cli.terminal import Colours

SMALL = (10, 40)  # rows and columns below which everything is said shorter
MOST_REFUSED = 3  # rows
MOST_TYPED = 3  # rows
CLAIMS = "  What the agent says about itself, in its own words. None of it was checked:"


class Frame:
    """One question on the screen. `note` is why the last answer does not count."""

    def __init__(self, row: dict[str, Any], waiting: int, colours: Colours) -> None:
        """Begin on its first page. `waiting` is how many questions there are, with this one."""
        self.row = row
        self.note = ""
        self.prompt = ""
        self._waiting = waiting
        self._colours = colours
        self._line: Line | None = None
        self._page = 0
        self._seen = 0  # pages
        self.claims = False  # whether the agent's own words are shown

    def update(self, row: dict[str, Any], waiting: int) -> None:
        """Show what it is now: the seconds that are left, for example."""
        self.row, self._waiting = row, waiting

    def typing(self, prompt: str, line: Line | None) -> None:
        """Ask for a line in place of a key. No prompt: for a key."""
        self.prompt, self._line = prompt, line

    def turn_page(self) -> None:
        """Go on to the next page, after the last to the first."""
        self._page += 1

    def show_claims(self) -> None:
        """Show, or hide, what the agent says about it."""
        self.claims, self._page = not self.claims, 0

    def lines(self, rows: int, columns: int) -> list[str]:
        """Return what is seen on so many rows of so many columns."""
        columns = max(20, columns - 1)  # the last column is left empty: a terminal may go on to the next line there
        small = rows < SMALL[0] or columns < SMALL[1]
        top, bottom = self._top(columns, small=small), self._asks(columns, small=small)
        room = rows - len(top) - len(bottom) - 1
        if room < 1:
            return [*top[: max(1, rows - len(bottom))], *bottom][:rows]
        body = self._body(columns)
        pages = max(1, -(-len(body) // room))
        self._page %= pages
        self._seen = max(self._seen, self._page + 1)
        shown = body[self._page * room : (self._page + 1) * room]
        turn = ""
        if pages > 1:
            unseen = pages - self._seen
            turn = f"  page {self._page + 1} of {pages}" + (f", {unseen} not seen yet" if unseen else "") + "  (space turns the page)"
            turn = self._colours.paint(turn[:columns], "yellow" if unseen else "dim")
        filled = [*shown, *[""] * (room - len(shown))] if rows < 10_000 else shown
        return [*top, *filled, turn, *bottom]

    def _top(self, columns: int, *, small: bool) -> list[str]:
        number = f"broker (1 of {self._waiting})" if self._waiting > 1 else "broker asks"
        plain = head(number, self.row, Colours(None))
        title, most = wrapped(plain[0], columns), 1 if small else MOST_REFUSED
        if small:
            title = [self._colours.risk(self.row["class"]) + f" {self.row['left']:.0f} s"]
        elif len(title) == 1:
            title = head(number, self.row, self._colours)[:1]
        why = plain[1].strip() if small else plain[1]
        refused = wrapped(why, columns)
        if len(refused) > most:
            refused = wrapped(why, columns - 2)[:most]
            refused[-1] += "…"
        return [*title, *(refused if small else map(self._labelled, refused))]

    def _body(self, columns: int) -> list[str]:
        if self.claims:
            claims = self.row.get("claims") or {}
            lines = [CLAIMS, *(line for name, text in claims.items() for line in named(f"{name}:", text))]
            lines += [] if claims else ["  nothing"]
        else:
            lines = details(self.row)
        return [self._labelled(part) for line in lines for part in wrapped(line, columns)]

    def _labelled(self, line: str) -> str:
        label, value = line[:LABEL], line[LABEL:]
        if ">>" in label:
            return self._colours.paint(label, "yellow") + self._colours.paint(value, "bold")
        if label.startswith("  diff") and value[:1] in ("+", "-"):
            value = self._colours.paint(value, "green" if value[0] == "+" else "red")
        return self._colours.paint(label, "dim") + value

    def _asks(self, columns: int, *, small: bool) -> list[str]:
        """Return the last lines: why an answer does not count, what is typed, which keys there are."""
        lines = []
        if self.note:
            lines += [self._colours.paint(part, "yellow") for part in wrapped(f"  {exact(self.note)}", columns)[:2]]
        if self.prompt:
            lines += [self._colours.paint(part, "bold") for part in wrapped(f"  {self.prompt}", columns)]
        if self._line is not None:
            typed = wrapped(f"  > {exact(self._line.text)}_", columns)
            lines += typed[-MOST_TYPED:]
            lines += wrapped(f"  {len(self._line.text)} of {self._line.most} characters · Enter · Esc back · Ctrl-C deny", columns)
        elif self.prompt:
            lines += wrapped("  Esc back · Ctrl-C deny", columns)
        else:
            lines += [self._colours.paint(part, "bold") for part in self._keys(columns, small=small)]
        return lines

    def _keys(self, columns: int, *, small: bool) -> list[str]:
        if small:
            return [("o once d deny w why m words" + (" s session" if self.row.get("session") else ""))[:columns]]
        keys = ["o once", *(["s session"] if self.row.get("session") else []), "d deny", "w deny and say why"]
        lines = [""]
        for key in (*keys, "m back to it" if self.claims else "m the agent's words"):
            if lines[-1] and len(lines[-1]) + len(key) + 3 > columns:
                lines.append("")
            lines[-1] += f" · {key}" if lines[-1] else f"  {key}"
        return lines
