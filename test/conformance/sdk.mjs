// Makes the calls of a plan with the official Node SDK.
//
// The plan comes in as a JSON list on standard input; what the SDK made of
// each call goes out as one JSON line. Base URL and key come from the
// environment, as applications have them. What is right or wrong is judged by
// the Go test that starts this script.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_TOOLS + "/");
const { OpenAI } = require("openai");

// reading feeds take with the events of a stream, up to where the client leaves.
async function reading(stream, call, got, take) {
  got.chunks = 0;
  for await (const event of stream) {
    take(event);
    got.chunks++;
    if (got.chunks === call.leave_after) {
      stream.controller.abort();
      return;
    }
  }
  got.ended = true;
}

const given = (n) => (n > 0 ? n : undefined);
const options = (call) => (call.usage ? { include_usage: true } : undefined);

function takeUsage(got, chunk) {
  if (chunk.usage) {
    got.usage_chunks++;
    got.tokens = chunk.usage.completion_tokens;
  }
}

const apis = {
  async models(client, call, got) {
    got.models = [];
    for await (const m of client.models.list()) got.models.push(m.id);
  },

  async model(client, call, got) {
    got.models = [(await client.models.retrieve(call.model)).id];
  },

  async chat(client, call, got) {
    const args = {
      model: call.model, max_tokens: given(call.max_tokens),
      messages: call.prompts.map((content) => ({ role: "user", content })),
    };
    if (!call.stream) {
      const r = await client.chat.completions.create(args);
      const choice = r.choices[0];
      Object.assign(got, { text: choice.message.content, finish: choice.finish_reason, tokens: r.usage.completion_tokens });
      return;
    }
    const tools = (got.tools = []);
    const stream = await client.chat.completions.create({ ...args, stream: true, stream_options: options(call) });
    await reading(stream, call, got, (chunk) => {
      takeUsage(got, chunk);
      for (const choice of chunk.choices) {
        got.text += choice.delta.content ?? "";
        got.finish = choice.finish_reason ?? got.finish;
        for (const part of choice.delta.tool_calls ?? []) {
          const tool = (tools[part.index] ??= { name: "", arguments: "" });
          tool.name += part.function?.name ?? "";
          tool.arguments += part.function?.arguments ?? "";
        }
      }
    });
  },

  async completions(client, call, got) {
    const args = { model: call.model, prompt: call.prompts[0], max_tokens: given(call.max_tokens) };
    if (!call.stream) {
      const r = await client.completions.create(args);
      const choice = r.choices[0];
      Object.assign(got, { text: choice.text, finish: choice.finish_reason, tokens: r.usage.completion_tokens });
      return;
    }
    const stream = await client.completions.create({ ...args, stream: true, stream_options: options(call) });
    await reading(stream, call, got, (chunk) => {
      takeUsage(got, chunk);
      for (const choice of chunk.choices) {
        got.text += choice.text;
        got.finish = choice.finish_reason ?? got.finish;
      }
    });
  },

  async embeddings(client, call, got) {
    const r = await client.embeddings.create({ model: call.model, input: call.prompts });
    got.vectors = r.data.map((d) => d.embedding.length);
  },

  async responses(client, call, got) {
    const args = { model: call.model, input: call.prompts[0], max_output_tokens: given(call.max_tokens) };
    if (!call.stream) {
      const r = await client.responses.create(args);
      Object.assign(got, { text: r.output_text, finish: r.status, tokens: r.usage.output_tokens });
      return;
    }
    got.events = [];
    got.sequence = [];
    const stream = await client.responses.create({ ...args, stream: true });
    await reading(stream, call, got, (event) => {
      got.events.push(event.type);
      got.sequence.push(event.sequence_number);
      if (event.type === "response.output_text.delta") got.text += event.delta;
    });
  },
};

// told is what an application can learn from an error of the SDK.
const told = (e) => ({
  class: e.constructor.name, message: e.message, status: e.status ?? 0,
  code: e.code ?? "", param: e.param ?? "", type: e.type ?? "", request_id: e.requestID ?? "",
});

for (const call of JSON.parse(readFileSync(0, "utf8"))) {
  const got = { text: "", finish: "", tokens: 0, usage_chunks: 0, ended: !call.stream };
  const client = new OpenAI({ maxRetries: call.retries, timeout: 60_000 });
  try {
    await apis[call.api](client, call, got);
  } catch (e) {
    if (!(e instanceof OpenAI.APIError)) throw e;
    got.ended = false;
    got.error = told(e);
  }
  console.log(JSON.stringify(got));
}
