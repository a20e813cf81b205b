#!/usr/bin/env python3
"""An HTTP server by aiohttp, under uvloop, whose answers come from the GPU.

GET /step/N makes step N, if the last one was N-1, and answers "N <checksum of VRAM, hex>"; a completed step is answered
again, so that a client whose connection was lost can repeat its request. Any other number is answered by 409. The right
answer follows from its number alone.

Usage: torch_server.py serve PORT
       torch_server.py ask ADDRESS,ADDRESS… PORT     steps until SIGTERM, at the address that answers;
                                                     prints a line for every hundred steps, and one for
                                                     every new connection; ends with 1 if an answer is wrong
"""

import asyncio
import sys

WORDS = 1 << 20


def value_of(step):
    """The sum over all words after that step: each step adds its number to every word."""
    return step * (step + 1) // 2 * WORDS % 2**63


async def serve(port):
    import torch  # pylint: disable=import-outside-toplevel
    from aiohttp import web  # pylint: disable=import-outside-toplevel

    words = torch.zeros(WORDS, dtype=torch.int64, device="cuda")
    made = 0

    async def answer(request):
        nonlocal made
        step = int(request.match_info["step"])
        if step == made + 1:
            words.add_(step)
            made = step
        if step != made:
            return web.Response(status=409, text=f"the last step was {made}")
        return web.Response(text=f"{made} {int(words.sum()):x}")

    application = web.Application()
    application.router.add_get("/step/{step}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


async def ask_one(stream, step):
    """The answer's status and text; OSError or EOFError if the connection is lost."""
    reader, writer = stream
    writer.write(f"GET /step/{step} HTTP/1.1\r\nHost: server\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
    lines = head.decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
    return lines[0].split()[1], (await asyncio.wait_for(reader.readexactly(length), 2)).decode()


async def connect(addresses, port):
    while True:
        for address in addresses:
            try:
                stream = await asyncio.wait_for(asyncio.open_connection(address, port), 0.5)
                print(f"connected to {address}", flush=True)
                return stream
            except OSError:
                await asyncio.sleep(0.05)


async def ask(addresses, port):
    step = 1
    while True:
        stream = await connect(addresses, port)
        try:
            while True:
                status, text = await ask_one(stream, step)
                if (status, text) != ("200", f"{step} {value_of(step):x}"):
                    print(f"error: step {step} was answered by {status}, {text}", flush=True)
                    sys.exit(1)
                if step % 100 == 0:
                    print(f"step={step}", flush=True)
                step += 1
        except (OSError, EOFError):
            stream[1].close()


def main():
    if sys.argv[1] == "serve":
        import uvloop  # pylint: disable=import-outside-toplevel

        uvloop.run(serve(int(sys.argv[2])))
    else:
        asyncio.run(ask(sys.argv[2].split(","), int(sys.argv[3])))


if __name__ == "__main__":
    main()
