"""The demo's agent. Its tools have effects on a real file and in a real database, neither of them the store's."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from perdure.bundle import AgentStore
from perdure.models import ScriptedModel, ToolCall
from perdure.runtime.agent import Agent
from perdure.runtime.tools import ToolContext, tool

REQUEST = "Order 7: two lamps for 80 EUR, and pass the supplier's share on."
CALLS = (
    ToolCall("call-1", "reserve_stock", {"item": "lamp", "quantity": 2}),
    ToolCall("call-2", "charge_card", {"card": "4242", "euros": 80}),
    ToolCall("call-3", "transfer_money", {"to": "supplier", "euros": 50}),
)
ANSWER = "Order 7 is reserved, paid for and passed on."

EFFECTS = {"reserve_stock": "stock reserved", "charge_card": "card charged", "transfer_money": "money transferred"}
"""What each tool does, in the words of the demo."""

_BANK = """
CREATE TABLE IF NOT EXISTS requests (tool TEXT NOT NULL, key TEXT NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS charges (key TEXT PRIMARY KEY, card TEXT NOT NULL, euros INTEGER NOT NULL, pid INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS transfers (recipient TEXT NOT NULL, euros INTEGER NOT NULL, pid INTEGER NOT NULL);
"""


class Shop:
    """The world outside the agent: a stock list in a file, and a bank with a database of its own.

    The stock list and the transfers take whatever comes, so that a repeated call would show. A charge carries an
    idempotency key, and the bank carries each key out once, as real ones do.

    Attributes:
        stock: The file, one line a reservation.
        bank: The database.
    """

    def __init__(self, directory: Path) -> None:
        self.stock = directory / "stock.jsonl"
        self.bank = directory / "bank.db"

    def reserve(self, item: str, quantity: int) -> None:
        """Add a line to the stock list, and wait for the disk."""
        line = json.dumps({"item": item, "quantity": quantity, "pid": os.getpid()})
        with self.stock.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def charge(self, key: str, card: str, euros: int) -> None:
        """Charge a card, unless a charge with this key was carried out before."""
        with self._bank() as bank:
            bank.execute("INSERT INTO requests VALUES ('charge_card', ?, ?)", (key, os.getpid()))
            bank.execute("INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?)", (key, card, euros, os.getpid()))

    def transfer(self, recipient: str, euros: int) -> None:
        """Transfer money, each time it is asked to."""
        with self._bank() as bank:
            bank.execute("INSERT INTO transfers VALUES (?, ?, ?)", (recipient, euros, os.getpid()))

    def effects(self) -> dict[str, list[int]]:
        """Read back what was done: for each tool, the ids of the processes that did it."""
        lines = self.stock.read_text(encoding="utf-8").splitlines() if self.stock.exists() else []
        with self._bank() as bank:
            charges = bank.execute("SELECT pid FROM charges ORDER BY rowid").fetchall()
            transfers = bank.execute("SELECT pid FROM transfers ORDER BY rowid").fetchall()
        return {
            "reserve_stock": [json.loads(line)["pid"] for line in lines],
            "charge_card": [pid for (pid,) in charges],
            "transfer_money": [pid for (pid,) in transfers],
        }

    def charge_requests(self) -> list[int]:
        """Read back which processes asked the bank for a charge, also those that it had carried out before."""
        with self._bank() as bank:
            return [pid for (pid,) in bank.execute("SELECT pid FROM requests ORDER BY rowid")]

    @contextlib.contextmanager
    def _bank(self) -> Iterator[sqlite3.Connection]:
        """Open the bank for one transaction, which is committed when the block ends well."""
        with contextlib.closing(sqlite3.connect(self.bank)) as bank:
            bank.executescript(_BANK)
            with bank:
                yield bank


async def _go_on(_: ToolContext) -> None:
    """Let a charge come to its end."""


def make_agent(store: AgentStore, shop: Shop, *, charged: Callable[[ToolContext], Awaitable[None]] = _go_on) -> Agent:
    """Make the agent of the shop. Every process makes its own.

    Args:
        store: Where its conversations are kept.
        shop: What its tools act on.
        charged: Awaited after the card was charged and before `charge_card` returns: where the demo is killed.
    """

    @tool
    def reserve_stock(item: str, quantity: int) -> str:
        """Reserve items for an order."""
        shop.reserve(item, quantity)
        return f"{quantity} x {item} reserved"

    @tool(idempotent=True)
    async def charge_card(card: str, euros: int, context: ToolContext) -> str:
        """Charge a card."""
        shop.charge(context.idempotency_key, card, euros)
        await charged(context)
        return f"{euros} EUR charged"

    @tool(needs_approval=True)
    def transfer_money(to: str, euros: int) -> str:
        """Transfer money. A human decides first."""
        shop.transfer(to, euros)
        return f"{euros} EUR transferred to {to}"

    return Agent(
        model=ScriptedModel([CALLS, ANSWER]),
        tools=[reserve_stock, charge_card, transfer_money],
        instructions="You handle the orders of a shop.",
        store=store,
        name="shop",
    )
