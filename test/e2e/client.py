"""Streams one answer through the OpenAI SDK and tells what it sees, a JSON
object a line: client.py BASE_URL MODEL PROMPT MAX_TOKENS."""

import json
import sys

import openai


def tell(**what):
    print(json.dumps(what), flush=True)


base, model, prompt, limit = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
try:
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=int(limit),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    tell(backend=raw.headers["x-firsttoken-backend"])
    for chunk in raw.parse():
        tell(chunk=chunk.model_dump())
    tell(end=True)
except openai.APIError as e:
    tell(error=type(e).__name__, code=e.code, message=e.message)
