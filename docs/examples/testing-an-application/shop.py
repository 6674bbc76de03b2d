"""An application to be tested: an agent that looks orders up, and refunds them. A refund of more than 50 euros is a human's decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from perdure import Agent, AgentStore, ToolContext, tool
from perdure.models import Model

INSTRUCTIONS = "You help the customers of a shop. Look an order up before you say anything about it."


class Bank(Protocol):
    """Carries refunds out, each key once."""

    async def refund(self, order: int, euros: int, key: str) -> str:
        """Refund an order and return the receipt; the same key again returns the same receipt."""
        ...


@dataclass
class Shop:
    """What the agent works with; in production a database and a bank.

    Attributes:
        bank: Carries refunds out.
        orders: What is known of each order.
    """

    bank: Bank
    orders: dict[int, str] = field(default_factory=dict)

    def agent(self, model: Model, store: AgentStore) -> Agent:
        """Return the agent; the model and the store are handed in, so that tests hand in theirs."""

        @tool(idempotent=True)
        def find(order: int) -> dict[str, Any]:
            """Look an order up."""
            if order not in self.orders:
                raise LookupError(f"there is no order {order}")
            return {"order": order, "state": self.orders[order]}

        @tool(
            idempotent=True,  # the bank carries each key out once
            needs_approval=lambda arguments: arguments["euros"] > 50,
            approval_timeout=timedelta(days=1),
        )
        async def refund(order: int, euros: int, context: ToolContext) -> str:
            """Refund an order."""
            return await self.bank.refund(order, euros, context.idempotency_key)

        return Agent(model=model, tools=[find, refund], instructions=INSTRUCTIONS, store=store, name="shop")
