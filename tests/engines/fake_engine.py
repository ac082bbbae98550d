"""A small fake llama-server: a standalone program for tests, standard library only, up in under 40 ms.

    python -I -S fake_engine.py --host /tmp/x.sock -c 1024 -np 1 --fake-load-ms 200 --fake-token-ms 20

It takes llama-server's flags (``--host PATH.sock`` or ``--host IP --port N``, ``-m``, ``-c``, ``-np``,
``--slot-save-path``, ``--embedding``; others are ignored) and these of its own:

    --fake-load-ms N          milliseconds after start during which every route answers 503 "Loading model"
    --fake-token-ms N         milliseconds between two tokens
    --fake-prefill-ms N       milliseconds before the first token (and before the answer's headers)
    --fake-first-token N      an answer begins with this token instead of tok0
    --fake-head-first         the headers of a stream are sent as soon as it has a slot, as llama-server does
    --fake-ignore-term        SIGTERM does nothing, as a loaded llama-server often behaves
    --fake-leader-ends        the first thread ends; the others go on, and the process shows as a zombie
    --fake-fail MESSAGE       write MESSAGE to stderr and exit at start ...
    --fake-fail-code N        ... with this code (default 1)
    --fake-flood              write to stderr all the time, as fast as it takes it
    --fake-log PATH           append a JSON line for everything that happens (survives a SIGKILL)
    --fake-api-key KEY        401 without this key, except for /health
    --fake-no-slots           /slots answers 501, as with llama-server's --no-slots

    --fake-restore-crash      restoring a slot ends the process
    --fake-forget             a restored slot is of no use, as with a model of sliding windows

    --fake-read-model         the model file is mapped, and every token reads all of its pages

Memory, which is touched and never given back:

    --fake-anon-mib N         anonymous, when the process starts
    --fake-leak-kib N         anonymous, for every generation (the host prompt cache)
    --fake-grow-mib-s R       anonymous, every second from when the model is loaded
    --fake-grow-after-s S     ... or from S seconds after that
    --fake-shmem-leak-kib N   shared (RssShmem), for every generation
    --fake-shmem-grow-mib-s R shared, every second from when the model is loaded

Faults of generations, which are counted from 1 in the order in which they come. A guard's own probe of one token is one
of them. N without a limit: the Nth and all after it.

    --fake-crash-at N         the Nth generation, and only that one, ends the process with ...
    --fake-crash-signal N     ... this signal (default 9; 11 and 6 are a crash) ...
    --fake-crash-tokens K     ... after K tokens of it were sent (0: after a stream's opening; unset: before anything)
    --fake-crash-word W       a generation whose prompt contains the word W ends the process at once
    --fake-hang-at N          from the Nth on nothing is answered, running streams and /health too: connections are
                              taken, and that is all
    --fake-wedge-at N         from the Nth on generations keep their slot and produce nothing, whether their clients
                              wait or leave; /health, /slots, /props and the rest go on as if nothing were ...
    --fake-wedge-spin         ... and burn CPU time meanwhile ...
    --fake-wedge-deaf         ... and /slots is not answered: so before b11434, and when stuck between two decodes
    --fake-wrong-json-at N    from the Nth on answers and events are no JSON: even numbers cut in the middle, odd HTML
    --fake-fail-from N        from the Nth on generations are answered with 500
    --fake-state PATH         the count goes on from this file after a restart ...
    --fake-once               ... and a fault that happened there in a former process does not happen again

A prompt's tokens are its whitespace-separated words plus one for each message; an answer is "tok0 tok1 tok2 ...", up
to ``max_tokens`` (16 when unset); a raw /completion goes on after the "tokN" that its prompt ends with. A closed
*stream* is noticed before the next token, a closed plain request only at its end: llama-server does the same.
``GET /fake/stats`` counts what happened in this process.
"""

import ctypes
import os
import socket
import sys
import threading

# -I leaves the program's own directory out; the package's name is the one that it has in the tests.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from engines.fake_llama.connection import Connection
from engines.fake_llama.engine import Engine, handle_term, start_growth
from engines.fake_llama.options import Options


def listen(options: Options) -> socket.socket:
    if options.host.endswith(".sock"):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(options.host)
        except OSError:
            # A dead server's socket file is in the way of llama-server too.
            sys.exit(f"couldn't bind HTTP server socket, hostname: {options.host}")
    else:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((options.host, options.port))
    server.listen(128)
    return server


def flood() -> None:
    while True:
        try:
            os.write(2, b"flood " * 100 + b"\n")
        except BlockingIOError:
            pass


HELP = """fake llama-server

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path
-c,    --ctx-size N                     size of the prompt context (see also -np, --not-a-flag)
-np,   --parallel N                     number of server slots
-b,    --batch-size N                   logical maximum batch size
-ub,   --ubatch-size N                  physical maximum batch size
-t,    --threads N                      number of threads
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-fa,   --flash-attn [on|off|auto]       flash attention
-cram, --cache-ram N                    host prompt cache in MiB
       --ctx-checkpoints N              checkpoints of a slot
-fit,  --fit [on|off]                   adjust unset arguments to fit
       --no-warmup                      skip the warm-up
       --cache-reuse N                  least chunk to reuse by shifting
       --slot-save-path PATH            where slots are saved
       --metrics                        serve /metrics
       --no-webui                       no web UI
       --offline                        no downloads
-to,   --timeout N                      read and write time-out
       --host HOST                      address, or a path that ends in .sock
       --port PORT                      port
"""


def main() -> None:
    if "--help" in sys.argv:
        own = (line.split()[0] for line in __doc__.splitlines() if line.strip().startswith("--fake-"))
        print(HELP + "\n".join(own))
        sys.exit(0)
    options = Options(sys.argv[1:])
    if options.fail:
        sys.stderr.write(options.fail + "\n")
        sys.exit(options.fail_code)
    handle_term(options)
    engine = Engine(options)
    server = listen(options)
    engine.log("listening", host=options.host)
    start_growth(engine)
    if options.flood:
        threading.Thread(target=flood, daemon=True).start()
    if options.leader_ends:
        threading.Thread(target=serve, args=(engine, server)).start()
        # Only this thread, and not the interpreter.
        ctypes.CDLL(None).pthread_exit(None)
    serve(engine, server)


def serve(engine: Engine, server: socket.socket) -> None:
    while True:
        sock, _ = server.accept()
        if sock.family != socket.AF_UNIX:
            # Head and first chunk are two writes: Nagle would hold the second for the client's delayed ACK, 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=Connection(engine, sock).run, daemon=True).start()


if __name__ == "__main__":
    main()
