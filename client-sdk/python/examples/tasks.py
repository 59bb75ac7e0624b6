"""Tasks of asyncio that each wait until their record is durable: hundreds at once, and no thread for any of them."""

import asyncio
import logging

import clad


async def order(producer: clad.AsyncProducer, number: int) -> int:
    receipt = await producer.append("order", attributes={"number": number}, level="durable")
    assert receipt.offset is not None
    return receipt.offset


async def main() -> None:
    async with clad.AsyncProducer(component="orders") as producer:
        offsets = await asyncio.gather(*(order(producer, number) for number in range(300)))
    logging.info("done", extra={"orders": len(set(offsets))})


if __name__ == "__main__":
    clad.setup(component="orders")
    asyncio.run(main())
