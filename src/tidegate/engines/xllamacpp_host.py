"""The worker program of the xllamacpp engine: llama-server's flags in, llama.cpp's own HTTP server out.

Run as a file in a process of its own, because llama.cpp gives memory back only when its process ends. SIGTERM keeps its
default disposition: nothing here needs a graceful exit, and llama.cpp's own handler often does not leave under load.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import xllamacpp

Setter = Callable[[xllamacpp.CommonParams, str], None]


def _attribute(name: str, kind: Callable[[str], object]) -> Setter:
    def put(params: xllamacpp.CommonParams, value: str) -> None:
        setattr(params, name, kind(value))

    return put


def _cpu(name: str) -> Setter:
    def put(params: xllamacpp.CommonParams, value: str) -> None:
        getattr(params, name).n_threads = int(value)

    return put


def _model(params: xllamacpp.CommonParams, value: str) -> None:
    params.model.path = value
    # Without an alias every answer's "model" is the path on this machine.
    params.model_alias = {os.path.basename(value).removesuffix(".gguf")}


def _kv_type(name: str) -> Setter:
    def put(params: xllamacpp.CommonParams, value: str) -> None:
        setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))

    return put


def _flash_attention(params: xllamacpp.CommonParams, value: str) -> None:
    kinds = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{kinds[value]}")


def _host(params: xllamacpp.CommonParams, value: str) -> None:
    params.hostnames = [value]


def _fit(params: xllamacpp.CommonParams, value: str) -> None:
    params.fit_params = {"on": True, "off": False}[value]


def _timeout(params: xllamacpp.CommonParams, value: str) -> None:
    params.timeout_read = params.timeout_write = int(value)


def _switch(name: str, *, on: bool) -> Callable[[xllamacpp.CommonParams], None]:
    def put(params: xllamacpp.CommonParams) -> None:
        setattr(params, name, on)

    return put


#: llama-server's flags that take a value, and where xllamacpp keeps it.
VALUES: dict[str, Setter] = {
    "-m": _model,
    "-c": _attribute("n_ctx", int),
    "-np": _attribute("n_parallel", int),
    "-b": _attribute("n_batch", int),
    "-ub": _attribute("n_ubatch", int),
    "-t": _cpu("cpuparams"),
    "-tb": _cpu("cpuparams_batch"),
    "-ngl": _attribute("n_gpu_layers", int),
    "-ctk": _kv_type("cache_type_k"),
    "-ctv": _kv_type("cache_type_v"),
    "-fa": _flash_attention,
    "-fit": _fit,
    "-lv": _attribute("verbosity", int),
    "--cache-ram": _attribute("cache_ram_mib", int),
    "--cache-reuse": _attribute("n_cache_reuse", int),
    "--chat-template": _attribute("chat_template", str),
    "--ctx-checkpoints": _attribute("n_ctx_checkpoints", int),
    "--host": _host,
    "--mmproj": lambda params, value: setattr(params.mmproj, "path", value),
    "--port": _attribute("port", int),
    "--slot-save-path": _attribute("slot_save_path", str),
    "--timeout": _timeout,
}
SWITCHES: dict[str, Callable[[xllamacpp.CommonParams], None]] = {
    "--context-shift": _switch("ctx_shift", on=True),
    "--embedding": _switch("embedding", on=True),
    "--metrics": _switch("endpoint_metrics", on=True),
    "--no-repack": _switch("no_extra_bufts", on=True),
    "--no-warmup": _switch("warmup", on=False),
    "--no-webui": _switch("ui", on=False),
    "--offline": _switch("offline", on=True),
    "--swa-full": _switch("swa_full", on=True),
    "--warmup": _switch("warmup", on=True),
}


def parameters(flags: list[str]) -> xllamacpp.CommonParams:
    """llama.cpp's parameters from ``flags``.

    Raises:
        ValueError: an unknown flag or a value it cannot take; the message names it.
    """
    params = xllamacpp.CommonParams()
    # 1 = errors only: the guard keeps the last lines of this output for its messages.
    params.verbosity = 1
    rest = iter(flags)
    for flag in rest:
        if flag in SWITCHES:
            SWITCHES[flag](params)
            continue
        if flag not in VALUES:
            known = " ".join(sorted([*VALUES, *SWITCHES]))
            raise ValueError(f"cannot use flag {flag}: the xllamacpp engine knows {known}")
        value = next(rest, None)
        try:
            if value is None:
                raise ValueError("it has no value")
            VALUES[flag](params, value)
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
            raise ValueError(f"cannot use flag {flag} {value}: {error}") from None
    return params


def main() -> int:
    """Serve until a signal ends the process; 1 when the model cannot be loaded, 2 for a bad flag."""
    if sys.argv[1:] == ["--help"]:
        print("\n".join(sorted([*VALUES, *SWITCHES])))
        return 0
    try:
        params = parameters(sys.argv[1:])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError, MemoryError) as error:
        print(f"cannot load {params.model.path}: {error}", file=sys.stderr)
        return 1
    print(f"serving on {server.listening_address}", file=sys.stderr)
    while True:
        signal.pause()


if __name__ == "__main__":
    # Not sys.exit: after a failed load llama.cpp's threads may block the interpreter's orderly end.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
