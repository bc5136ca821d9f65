"""Makes the calls of a plan with the official Python SDK.

The plan comes in as a JSON list on standard input; what the SDK made of each
call goes out as one JSON line. Base URL and key come from the environment, as
applications have them. What is right or wrong is judged by the Go test that
starts this script.
"""

import json
import sys

import openai


def reading(stream, call, take):
    """Feeds take with the events of a stream, up to where the client leaves."""
    count = 0
    for event in stream:
        take(event)
        count += 1
        if count == call["leave_after"]:
            stream.close()
            return count, False
    return count, True


def models(client, call, got):
    got["models"] = [m.id for m in client.models.list()]


def model(client, call, got):
    got["models"] = [client.models.retrieve(call["model"]).id]


def chat(client, call, got):
    args = dict(model=call["model"], max_tokens=call["max_tokens"] or openai.omit,
                messages=[{"role": "user", "content": p} for p in call["prompts"]])
    if not call["stream"]:
        r = client.chat.completions.create(**args)
        choice = r.choices[0]
        got.update(text=choice.message.content, finish=choice.finish_reason, tokens=r.usage.completion_tokens)
        return
    tools = got["tools"] = []

    def take(chunk):
        if chunk.usage:
            got["usage_chunks"] += 1
            got["tokens"] = chunk.usage.completion_tokens
        for choice in chunk.choices:
            got["text"] += choice.delta.content or ""
            got["finish"] = choice.finish_reason or got["finish"]
            for part in choice.delta.tool_calls or []:
                while len(tools) <= part.index:
                    tools.append({"name": "", "arguments": ""})
                tools[part.index]["name"] += part.function.name or ""
                tools[part.index]["arguments"] += part.function.arguments or ""

    options = {"include_usage": True} if call["usage"] else openai.omit
    stream = client.chat.completions.create(stream=True, stream_options=options, **args)
    got["chunks"], got["ended"] = reading(stream, call, take)


def completions(client, call, got):
    args = dict(model=call["model"], prompt=call["prompts"][0], max_tokens=call["max_tokens"] or openai.omit)
    if not call["stream"]:
        r = client.completions.create(**args)
        got.update(text=r.choices[0].text, finish=r.choices[0].finish_reason, tokens=r.usage.completion_tokens)
        return

    def take(chunk):
        if chunk.usage:
            got["usage_chunks"] += 1
            got["tokens"] = chunk.usage.completion_tokens
        for choice in chunk.choices:
            got["text"] += choice.text
            got["finish"] = choice.finish_reason or got["finish"]

    options = {"include_usage": True} if call["usage"] else openai.omit
    stream = client.completions.create(stream=True, stream_options=options, **args)
    got["chunks"], got["ended"] = reading(stream, call, take)


def embeddings(client, call, got):
    r = client.embeddings.create(model=call["model"], input=call["prompts"])
    got["vectors"] = [len(d.embedding) for d in r.data]


def responses(client, call, got):
    args = dict(model=call["model"], input=call["prompts"][0], max_output_tokens=call["max_tokens"] or openai.omit)
    if not call["stream"]:
        r = client.responses.create(**args)
        got.update(text=r.output_text, finish=r.status, tokens=r.usage.output_tokens)
        return
    got["events"], got["sequence"] = [], []

    def take(event):
        got["events"].append(event.type)
        got["sequence"].append(event.sequence_number)
        if event.type == "response.output_text.delta":
            got["text"] += event.delta

    stream = client.responses.create(stream=True, **args)
    got["chunks"], got["ended"] = reading(stream, call, take)


APIS = {f.__name__: f for f in (models, model, chat, completions, embeddings, responses)}


def told(e):
    """What an application can learn from an error of the SDK."""
    return {
        "class": type(e).__name__, "message": e.message, "status": getattr(e, "status_code", 0),
        "code": e.code or "", "param": e.param or "", "type": e.type or "",
        "request_id": getattr(e, "request_id", None) or "",
    }


def main():
    for call in json.load(sys.stdin):
        got = {"text": "", "finish": "", "tokens": 0, "usage_chunks": 0, "ended": not call["stream"]}
        client = openai.OpenAI(max_retries=call["retries"], timeout=60)
        try:
            APIS[call["api"]](client, call, got)
        except openai.APIError as e:
            got["ended"], got["error"] = False, told(e)
        print(json.dumps(got), flush=True)


main()
