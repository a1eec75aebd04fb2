"""Runs a command without any network, and counts who was asked: `python tests/isolated.py COMMAND
...`.

In a user, mount and network namespace of its own only the loopback device is there, and the one
name server that /etc/resolv.conf names is this process. So it sees the look-ups of every child,
whatever language it is written in. The last line of stderr is `asked: ` and a JSON list of names.
Needs Linux, `unshare` and `mount`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

INSIDE = "CLOZELAB_TEST_ISOLATED"
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def name_in(packet: bytes) -> str:
    """The name that a DNS query asks for."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode(errors="replace"))
        at += packet[at] + 1
    return ".".join(labels)


def main() -> int:
    if INSIDE not in os.environ:
        command = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
        command += [sys.executable, *sys.argv]
        return subprocess.run(command, env=os.environ | {INSIDE: "1"}).returncode
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as resolver:
        resolver.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        resolver.flush()
        subprocess.run(
            ["mount", "--bind", resolver.name, os.path.realpath("/etc/resolv.conf")], check=True
        )
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 53))
        asked: list[str] = []

        def answer() -> None:
            while True:
                packet, sender = server.recvfrom(4096)
                asked.append(name_in(packet))
                # there is no such name
                server.sendto(packet[:2] + b"\x81\x83" + packet[4:], sender)

        threading.Thread(target=answer, daemon=True).start()
        status = subprocess.run(sys.argv[1:]).returncode
        print(f"asked: {json.dumps(asked)}", file=sys.stderr, flush=True)
        return status


if __name__ == "__main__":
    sys.exit(main())
