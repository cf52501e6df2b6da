"""An order from checkout to the parcel's label: what `ductor-stream dev orders:app` runs.

The workflow reads as ordinary asyncio. It survives the death of every process that takes part in it: each step's
result is committed to Postgres before the next one is sent out, and a step that was under way is tried again.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from ductor_stream import App, Retry, RetryableError, Run, StepError, TerminalError, current_attempt

app = App("orders")


@dataclass
class Item:
    """One line of an order. Prices are decimals, which travel as strings."""

    sku: str
    name: str
    quantity: int
    price: Decimal
    options: dict[str, str] = field(default_factory=dict)


@dataclass
class Address:
    """Where the parcel goes."""

    street: str
    city: str
    postcode: str
    country: str


@dataclass
class Customer:
    """Who ordered."""

    name: str
    email: str
    address: Address


@dataclass
class Order:
    """An order as the shop's checkout sends it."""

    id: str
    customer: Customer
    items: list[Item]
    total: Decimal
    currency: str
    placed_at: datetime
    express: bool = False
    gift_note: str | None = None


@dataclass
class Reservation:
    """Stock that is set aside for an order."""

    sku: str
    shelf: str


@dataclass
class Receipt:
    """What the workflow returns."""

    order: str
    outcome: str
    paid: Decimal
    tracking: str | None = None


REVIEW_LIMIT = Decimal(1000)
WRAPPING_DRIES_S = 1.0

reviewed = app.signal("reviewed", bool)


async def pretend_work(ms: int) -> None:
    """Stands for the call to another system that a real step would make."""
    await asyncio.sleep(ms / 1000)


def chance(text: str, percent: int) -> bool:
    """The same answer for the same text in every process, true for about so many percent of texts."""
    return zlib.crc32(text.encode()) % 100 < percent


@app.step(timeout=10)
async def check_order(order: Order) -> Decimal:
    """Add the order up; what the checkout claims must be right."""
    await pretend_work(5)
    total = sum((item.price * item.quantity for item in order.items), Decimal(0))
    if total != order.total:
        raise TerminalError(f"the items add up to {total}, not {order.total}", type="WrongTotal")
    return total


@app.step(queue="warehouse", timeout=10)
def reserve(sku: str, quantity: int) -> Reservation:
    """Set stock aside. A plain function: it runs in a thread."""
    return Reservation(sku, shelf=f"{chr(65 + zlib.crc32(sku.encode()) % 20)}{quantity % 10}")


@app.step(queue="payments", timeout=30, retry=Retry(max_attempts=5, initial=0.2, maximum=2))
async def charge(order_id: str, amount: Decimal) -> str:
    """Charge the card. The gateway is busy now and then; the idempotency key makes trying again safe."""
    await pretend_work(20)
    attempt = current_attempt()
    if attempt.attempt == 1 and chance(f"busy {order_id}", 10):
        raise RetryableError("the payment gateway is busy", type="GatewayBusy")
    if chance(f"declined {order_id}", 2):
        raise TerminalError("the card was declined", type="CardDeclined")
    return f"ch_{zlib.crc32(attempt.idempotency_key.encode()):08x}"


@app.step(queue="warehouse", timeout=10)
def release(reservation: Reservation) -> None:
    """Put stock back."""


@app.step(queue="warehouse", timeout=60)
async def pack(order: Order, reservations: list[Reservation]) -> int:
    """Pack the parcel; returns its weight in grams."""
    await pretend_work(15)
    return 250 + 120 * sum(item.quantity for item in order.items) + len(reservations)


@app.step(queue="warehouse", timeout=30, retry=Retry(initial=0.5))
async def ship(order: Order, weight_grams: int) -> str:
    """Book the carrier; returns the tracking number."""
    await pretend_work(20)
    carrier = "EX" if order.express else "PA"
    return f"{carrier}{zlib.crc32(current_attempt().idempotency_key.encode()):010d}{order.customer.address.country}"


@app.step(timeout=10)
async def send_mail(to: str, text: str) -> None:
    """Tell the customer."""
    await pretend_work(5)


@app.workflow(version="1")
async def fulfil(run: Run, order: Order) -> Receipt:
    """Check, reserve, review, charge, pack, ship, tell."""
    total = await run.step(check_order, order)
    stock = await asyncio.gather(*(run.step(reserve, item.sku, item.quantity) for item in order.items))

    if total > REVIEW_LIMIT and not await run.wait_signal(reviewed):
        return await refuse(run, order, stock, "refused in review")
    try:
        await run.step(charge, order.id, total)
    except StepError as error:
        return await refuse(run, order, stock, error.type)

    if order.gift_note:
        await asyncio.sleep(WRAPPING_DRIES_S)  # a durable timer: it costs nothing, however long it is
    weight = await run.step(pack, order, stock)
    tracking = await run.step(ship, order, weight)
    await run.step(send_mail, order.customer.email, f"Your order {order.id} is on its way: {tracking}")
    return Receipt(order.id, "shipped", total, tracking)


async def refuse(run: Run, order: Order, stock: list[Reservation], why: str) -> Receipt:
    """Give the stock back and say why."""
    await asyncio.gather(*(run.step(release, reservation) for reservation in stock))
    await run.step(send_mail, order.customer.email, f"We could not take your order {order.id}: {why}")
    return Receipt(order.id, why, Decimal(0))
