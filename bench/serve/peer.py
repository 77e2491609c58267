"""`mlx_lm.server`, the program itself, over the model that is measured."""

import socket
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from typing import Any

from kvactors.bench import peers

__all__ = ["mlx_lm_server"]

SECONDS_TO_START = 60.0
# More conversations than any trace has: its own number is 10.
MOST_CACHES = 1000


def mlx_lm_server(source: Callable[[], Any], prompt: list[int]) -> Callable[[], str]:
    """Starts the server of mlx-lm over the model of `source`, in the chunks that it is fastest with
    for this `prompt`, in a process of its own; what is returned gives its URL."""
    from mlx_lm import server

    chunk = peers.best_chunk(source()[0], prompt)

    class Provider(server.ModelProvider):  # type: ignore[misc]
        """Gives the model that is made, not loaded. The server's own thread."""

        def _load(self, *key: Any) -> None:
            self.model, tokenizer = source()
            self.tokenizer = _wrapped(tokenizer)
            self.model_key, self.is_batchable = key, True

    class Handler(server.APIHandler):  # type: ignore[misc]
        """Says nothing on the terminal."""

        def log_message(self, *_said: Any) -> None:
            pass

    port = _free_port()

    def serve() -> None:
        server.run("127.0.0.1", port, Provider(_options(chunk)), handler_class=Handler)

    threading.Thread(target=serve, daemon=True).start()
    _until_it_listens(port)
    return lambda: f"http://127.0.0.1:{port}"


def _options(chunk: int) -> Namespace:
    """Those of its command line: its defaults, but for chunks and the number of caches."""
    return Namespace(
        model="default_model",
        adapter_path=None,
        draft_model=None,
        num_draft_tokens=3,
        trust_remote_code=False,
        chat_template="",
        use_default_chat_template=False,
        chat_template_args={},
        allowed_origins=["*"],
        temp=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        max_tokens=512,
        decode_concurrency=32,
        prompt_concurrency=8,
        prefill_step_size=chunk,
        prompt_cache_size=MOST_CACHES,
        prompt_cache_bytes=None,
        kv_bits=None,
        kv_group_size=64,
        quantized_kv_start=0,
        pipeline=False,
    )


def _wrapped(tokenizer: Any) -> Any:
    """As mlx-lm wraps tokenizers; that of random models joins what was said."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    if isinstance(tokenizer, TokenizerWrapper):
        return tokenizer
    if not tokenizer.eos_token_ids:
        tokenizer.eos_token_id = None
    return TokenizerWrapper(tokenizer, chat_template=tokenizer.apply_chat_template)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_it_listens(port: int) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
