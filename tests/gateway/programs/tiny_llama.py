"""A real engine with a model of chance: llama.cpp's server, and weights of 300 kB that are the same each time.

python tiny_llama.py write FILE             make the model
python tiny_llama.py serve FILE NAME PORT   serve it on this machine, under that name
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

VOCABULARY, WIDTH, INNER, HEADS, CONTEXT = 259, 64, 128, 2, 512
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write(path: str) -> None:
    """One layer, whose tokens are bytes."""
    import gguf

    chance = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (chance.standard_normal(shape) * 0.2).astype(np.float32)

    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(1)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_vocab_size(VOCABULARY)
    file.add_tokenizer_model("llama")
    file.add_token_list([b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256])
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_chat_template(TEMPLATE)
    for name in ("token_embd", "output"):
        file.add_tensor(f"{name}.weight", weights(VOCABULARY, WIDTH))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        file.add_tensor(f"blk.0.{name}.weight", weights(WIDTH, WIDTH))
    for name, shape in (("gate", (INNER, WIDTH)), ("up", (INNER, WIDTH)), ("down", (WIDTH, INNER))):
        file.add_tensor(f"blk.0.ffn_{name}.weight", weights(*shape))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        file.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def serve(path: str, name: str, port: str) -> None:
    """Answer until it is killed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = path, {name}
    params.n_ctx, params.n_gpu_layers, params.warmup, params.cpuparams.n_threads = CONTEXT, 0, False, 1
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"write": write, "serve": serve}
    commands[sys.argv[1]](*sys.argv[2:])
