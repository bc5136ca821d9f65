"""A predictor as a sidecar: LightGBM behind HTTP, for the comparison only."""
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import lightgbm
import numpy

heads = [lightgbm.Booster(model_file=f"{sys.argv[1]}/{name}.txt") for name in ("p50", "p95")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one write

    def do_POST(self):
        rows = numpy.array(json.loads(self.rfile.read(int(self.headers["content-length"]))), dtype=float)
        body = json.dumps([head.predict(rows, num_threads=1).tolist() for head in heads]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
