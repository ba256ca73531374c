"""The command line's way in: `perfsim` and `python -m perfsim`.

An interrupt while modules are read, or while the interpreter ends, finds no verb that could answer
it: until a verb runs, and after it, a handler of our own ends the process with one message. What is read
before that handler is there is kept to a minimum. While Python itself starts, which takes 10 ms, and 30 ms
more with the hook of an editable install, an interrupt is answered by Python, with a traceback.
"""

from __future__ import annotations

import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:  # `signal` reads `enum` and more, which takes milliseconds
    import _signal as signal

INTERRUPTED = 130
COLLECTED_EVERY = 500_000
"""Objects between two searches for cycles; modules and graphs make many that stay, and few cycles."""


def _end(_signal: int, _frame: object) -> None:
    """Say it once and go; no exception that an import could swallow or print."""
    os.write(2, b"error: interrupted before the end\n")
    os._exit(INTERRUPTED)


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _end)
    gc.set_threshold(COLLECTED_EVERY, 20, 20)
    from perfsim.cli import main as cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli()
    finally:
        signal.signal(signal.SIGINT, _end)
        gc.freeze()  # the interpreter ends without another search, which takes a fifth of a second


if __name__ == "__main__":
    main()
