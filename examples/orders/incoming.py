"""Orders as another service would send them: plain JSON records, made without any part of ductor_stream.

``python incoming.py 500 | kcat -P -b $BROKER -t ductor.orders.run-events -K:`` starts 500 orders.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

CATALOGUE = [
    ("BK-1001", "Gödel, Escher, Bach", "24.90"),
    ("BK-1002", "百年の孤独", "18.00"),
    ("BK-1003", "Преступление и наказание", "11.50"),
    ("KT-2001", "Teekanne «Löwe» 1,2 l", "39.95"),
    ("KT-2002", "Crêpière en fonte Ø 28", "64.00"),
    ("KT-2003", "Jeu de couteaux 🔪", "129.00"),
    ("EL-3001", "Kopfhörer Größe M", "89.99"),
    ("EL-3002", "14″ laptop, 32 GB", "1299.00"),
    ("EL-3003", "Câble USB-C 2 m", "9.99"),
    ("TX-4001", "Pulóver de lã — azul", "54.90"),
    ("TX-4002", "Mütze „Polarlicht“", "19.90"),
    ("TX-4003", "سجادة صغيرة", "240.00"),
]
PEOPLE = [
    ("Zoë Brontë", "12 Höhenstraße", "Köln", "50667", "DE"),
    ("Łukasz Żółć", "ul. Długa 7/3", "Gdańsk", "80-827", "PL"),
    ("María-José Peña", "C/ Núñez de Balboa 4, 2º", "Madrid", "28001", "ES"),
    ("Ýmir Þórsson", "Laugavegur 22", "Reykjavík", "101", "IS"),
    ("山田 花子", "神田神保町1-2", "東京", "101-0051", "JP"),
    ("Siobhán O'Brien", '3 "The Quay"', "Cork", "T12 X2", "IE"),
    ("أحمد علي", "شارع التحرير ١٠", "القاهرة", "11511", "EG"),
    ("Anaïs Lefèvre", "8, rue de l'Église", "Liège", "4000", "BE"),
]
COLOURS = ["черный", "weiß", "azul", "緑"]
NOTES = ["Alles Gute! 🎂", "с любовью", "Bon anniversaire, mémé", 'from "all of us"\n\t— A & B']
FIRST = datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
REVIEW_LIMIT = Decimal(1000)


def items(dice: random.Random) -> list[dict[str, Any]]:
    """One to three lines of an order, with nested options on some."""
    lines = []
    for sku, name, price in dice.sample(CATALOGUE, dice.choice((1, 1, 2, 2, 3))):
        line: dict[str, Any] = {"sku": sku, "name": name, "quantity": dice.randint(1, 3), "price": price}
        if sku.startswith(("TX", "EL")):
            line["options"] = {"colour": dice.choice(COLOURS), "engraving": f"№ {dice.randint(1, 99)}"}
        lines.append(line)
    return lines


def order(order_id: str, number: int, dice: random.Random) -> dict[str, Any]:
    """One order as JSON values; amounts are strings, since a float is no amount of money."""
    name, street, city, postcode, country = dice.choice(PEOPLE)
    lines = items(dice)
    total = sum(Decimal(line["price"]) * line["quantity"] for line in lines)
    return {
        "id": order_id,
        "customer": {
            "name": name,
            "email": f"customer{number}@example.com",
            "address": {"street": street, "city": city, "postcode": postcode, "country": country},
        },
        "items": lines,
        "total": str(total),
        "currency": "EUR",
        "placed_at": (FIRST + timedelta(seconds=13 * number)).isoformat().replace("+00:00", "Z"),
        "express": dice.random() < 0.2,
        "gift_note": dice.choice(NOTES) if dice.random() < 0.15 else None,
    }


def records(count: int, prefix: str = "order") -> Iterator[tuple[str, dict[str, Any]]]:
    """``count`` orders as (key, value) for the topic of run events, and a review for each that is over the limit.

    The same prefix gives the same orders. A review may come before its order has been read: it waits for it.
    """
    dice = random.Random(prefix)
    for number in range(1, count + 1):
        run_id = f"{prefix}-{number}"
        body = order(run_id, number, dice)
        yield run_id, {"type": "run.start", "run_id": run_id, "workflow": "fulfil", "input": body}
        if Decimal(body["total"]) > REVIEW_LIMIT:
            verdict = dice.random() < 0.9
            yield run_id, {"type": "run.signal", "run_id": run_id, "name": "reviewed", "payload": verdict}


def main() -> None:
    """Print records as kcat takes them with ``-K:``: the key, a colon, the value."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    prefix = sys.argv[2] if len(sys.argv) > 2 else "order"
    for key, value in records(count, prefix):
        print(f"{key}:{json.dumps(value, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
