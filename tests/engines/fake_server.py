"""A small OpenAI-compatible server in front of any engine, with failures on demand."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from grpo_pipeline.engines.protocol import Request, SamplingParams


class FakeServer:
    """Answers /v1/models, /tokenize and /v1/completions as vLLM does.

    Args:
        engine: Makes the samples.
        served: Name of the model.
        failures: Answers (status, headers) that the next completions get instead of a sample; status 0
            breaks the connection.
    """

    def __init__(self, engine, served, failures=()):
        self.engine, self.served, self.failures = engine, served, list(failures)
        self.tokenizer = engine.tokenizer
        self.bodies, self.active, self.most_active = [], 0, 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_GET(self):
                assert self.path == "/v1/models"
                entry = {"id": server.served, "root": None, "max_model_len": server.engine.max_model_len}
                self.answer(200, {"data": [entry]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/tokenize":
                    ids = server.tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"])
                    self.answer(200, {"tokens": ids})
                    return
                assert self.path == "/v1/completions"
                self.complete(body)

            def complete(self, body):
                with server.lock:
                    server.bodies.append(body)
                    server.active += 1
                    server.most_active = max(server.most_active, server.active)
                    failure = server.failures.pop(0) if server.failures else None
                try:
                    if failure is None:
                        self.answer(200, server.complete(body))
                    elif failure[0] == 0:
                        self.close_connection = True
                    else:
                        self.answer(failure[0], {"error": "not now"}, failure[1])
                finally:
                    with server.lock:
                        server.active -= 1

            def answer(self, status, content, headers=()):
                data = json.dumps(content).encode()
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)

    def complete(self, body):
        assert body["model"] == self.served
        sampling = SamplingParams(body["temperature"], body["top_p"], body["max_tokens"], tuple(body["stop"]))
        with self.lock:
            sample = self.engine.generate([Request(body["prompt"], [body["seed"]])], sampling)[0][0]
        choice = {
            "text": sample.text,
            "finish_reason": sample.finish_reason,
            "token_ids": sample.token_ids.tolist(),
            "logprobs": {"token_logprobs": [float(value) for value in sample.logprobs]},
        }
        return {"choices": [choice]}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_exception):
        self.http.shutdown()
        self.http.server_close()
