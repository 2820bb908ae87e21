"""A server that speaks vLLM's protocol and has the faults that a real one can't be made to have.

The fault is named by the variable FAKE_FAULT:

    argument   refuses an argument, as argparse does        silent    never becomes ready
    exit       ends at start with a traceback               dies      ends at the first question
    download   can't get the model
    error      answers HTTP 500                             hangs     never answers a question
    nan        has NaN logprobs                             prompt    changes the prompt
    flaky      answers differently each time                decodes   an autotuner's choice moves decoding alone
    retunes    ignores the choice in a warm cache           unpinned  chooses although the pin is set
    info       answers /server_info with a page, not JSON

What the process sees is written to the file FAKE_WITNESS. FAKE_BLOCKS lists what its autotuner chooses for a reduction
in each start (counted in the file FAKE_STARTS); answers follow the choice. A choice in the cache is taken from there,
and nothing is chosen where the pin of the recipe is set.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAKE_FAULT", "")
BLOCK = 0
NAN_TEXT = "Out of range float values are not JSON compliant"


def answer(request: dict[str, Any], salt: int) -> dict[str, Any]:
    prompt = request["prompt"]
    scored = "prompt_logprobs" in request
    top = request["prompt_logprobs"] if scored else request["logprobs"]
    ids = prompt[1:] if scored else [draw(prompt, step) % 448 for step in range(request["max_tokens"])]
    rows = [row(prompt, step, token, top, salt) for step, token in enumerate(ids)]
    choice = {"token_ids": ids, "prompt_token_ids": prompt}
    if FAULT == "prompt":
        choice["prompt_token_ids"] = prompt[1:]
    if scored:
        entries = [{str(token): {"logprob": value} for token, value in row.items()} for row in rows]
        choice["prompt_logprobs"] = [None, *entries]
    else:
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": [row[token] for token, row in zip(ids, rows, strict=True)],
            "top_logprobs": [{f"token_id:{token}": value for token, value in row.items()} for row in rows],
        }
    return {"choices": [choice]}


def streamed(request: dict[str, Any]) -> list[str]:
    """One event with everything; NaN as null. Prompt logprobs come as those of echoed tokens."""
    plain = {name: value for name, value in request.items() if name not in ("stream", "echo")}
    if request.get("echo"):
        plain["prompt_logprobs"] = plain["logprobs"]
        choice = answer(plain, 0)["choices"][0]
        rows = choice.pop("prompt_logprobs")
        prompt = choice["prompt_token_ids"]
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in prompt],
            "token_logprobs": [row and row[str(t)]["logprob"] for t, row in zip(prompt, rows, strict=True)],
            "top_logprobs": [row and {f"token_id:{t}": entry["logprob"] for t, entry in row.items()} for row in rows],
        }
    else:
        choice = answer(plain, 0)["choices"][0]
    return [f"data: {json.dumps({'choices': [choice]}).replace('NaN', 'null')}", "", "data: [DONE]", ""]


def draw(prompt: list[int], step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{prompt}/{step}".encode()).digest()[:4], "little")


def row(prompt: list[int], step: int, token: int, top: int, salt: int) -> dict[int, float]:
    best = math.nan if FAULT == "nan" and step % 7 == 0 else -(draw(prompt, step) % 64) / 16 - salt / 1024
    return {(token + other) % 512: best - other / 16 for other in range(max(1, top))}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    asked = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            self.say(200, b"")
        elif self.path == "/v1/models":
            length = int(os.environ.get("FAKE_LENGTH", "2048"))
            self.say(200, json.dumps({"data": [{"max_model_len": length}]}).encode())
        elif self.path.startswith("/server_info") and FAULT == "info":
            self.say(200, b"<html>")
        elif self.path.startswith("/server_info"):
            model = {"dtype": "torch.bfloat16", "hf_token": "secret"}
            self.say(200, json.dumps({"vllm_config": {"model_config": model, "instance_id": "7"}}).encode())
        else:
            self.say(404, b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.asked += 1
        if FAULT == "dies":
            print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        if FAULT == "hangs":
            time.sleep(600)
        if FAULT == "error":
            return self.say(500, b'{"error": {"message": "EngineCore encountered an issue"}}')
        if request.get("stream"):
            return self.say(200, "\n".join(streamed(request)).encode())
        moves = FAULT != "decodes" or "prompt_logprobs" not in request
        text = json.dumps(answer(request, Handler.asked if FAULT == "flaky" else BLOCK * moves))
        if "NaN" in text:
            return self.say(400, json.dumps({"error": {"message": NAN_TEXT}}).encode())
        return self.say(200, text.encode())

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def tune() -> int:
    """The reduction's block, or 0 if nothing is chosen; leaves the kernel and the choice as Inductor does."""
    if not (blocks := os.environ.get("FAKE_BLOCKS", "").split(",")) or not blocks[0]:
        return 0
    with open(os.environ["FAKE_STARTS"], "a+") as starts:
        starts.seek(0)
        number = len(starts.readlines())
        starts.write("start\n")
    pinned = os.environ.get("TORCHINDUCTOR_FORCE_FILTER_REDUCTION_CONFIGS") == "1" and FAULT != "unpinned"
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "cx")
    folder.mkdir(exist_ok=True)
    meta = {"kernel_name": "triton_red_fused_1", "deterministic": pinned, "force_filter_reduction_configs": pinned}
    (folder / "cred.py").write_text(f"@triton_heuristics.reduction(inductor_meta={meta})\ndef triton_red(): ...\n")
    if pinned:
        return 0
    choice = folder / "0.best_config"
    if choice.exists() and FAULT != "retunes":
        return int(json.loads(choice.read_text())["R0_BLOCK"])
    block = int(blocks[min(number, len(blocks) - 1)])
    choice.write_text(json.dumps({"XBLOCK": 64, "R0_BLOCK": block, "num_warps": 16, "triton_cache_hash": f"H{block}"}))
    return block


def main() -> None:
    global BLOCK
    # Leaves the process group, as a helper of a careless library may.
    stray = subprocess.Popen(["sleep", "600"], start_new_session=True)
    if witness := os.environ.get("FAKE_WITNESS"):
        seen = {
            "environment": dict(os.environ),
            "arguments": sys.argv[1:],
            "path": sys.path,
            "folder": os.getcwd(),
            "files": os.listdir(),
            "pids": [os.getpid(), stray.pid],
        }
        with open(witness, "w") as file:
            json.dump(seen, file)
    if FAULT == "argument":
        print("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --no-such-thing", flush=True)
        sys.exit(2)
    if FAULT == "download":
        raise OSError("nobody/none is not a local folder and is not a valid model identifier")
    if FAULT == "exit":
        print("(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1] ValueError: No available memory for the cache.")
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    if FAULT == "silent":
        time.sleep(600)
    BLOCK = tune()
    port = next(int(argument.removeprefix("--port=")) for argument in sys.argv if argument.startswith("--port="))
    ThreadingHTTPServer.request_queue_size = 64
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
