// A server of one era on stdio: `server.mjs ERA`.

const [era] = process.argv.slice(2);
const info = { name: "typescript", version: "1" };
const capabilities = { tools: {} };
const object = { type: "object", properties: {} };
const form = {
  message: "who are you?",
  requestedSchema: {
    type: "object",
    properties: { name: { type: "string" } },
    required: ["name"],
  },
};
const prompt = {
  messages: [{ role: "user", content: { type: "text", text: "say it" } }],
  maxTokens: 9,
};
const tools = [
  {
    name: "add",
    inputSchema: {
      type: "object",
      properties: { a: { type: "integer" }, b: { type: "integer" } },
    },
    outputSchema: { type: "object", properties: { sum: { type: "integer" } } },
  },
  ...["count", "ask", "sample", "roots"].map((name) => ({ name, inputSchema: object })),
];
const text = (words) => ({ content: [{ type: "text", text: words }] });

// What the tools do; `ask` brings the client's answer, `notify` tells it of progress.
async function call({ name, arguments: args, _meta }, ask, notify) {
  switch (name) {
    case "add": {
      const sum = args.a + args.b;
      return { ...text(String(sum)), structuredContent: { sum } };
    }
    case "count":
      for (const progress of [1, 2, 3]) {
        const params = { progressToken: _meta?.progressToken, progress, total: 3 };
        if (params.progressToken !== undefined) {
          await notify({ method: "notifications/progress", params });
        }
      }
      return text("counted");
    case "ask": {
      const answer = await ask("elicitation/create", { mode: "form", ...form });
      return text(`${answer.action} ${answer.content.name}`);
    }
    case "sample":
      return text((await ask("sampling/createMessage", prompt)).content.text);
    case "roots":
      return text((await ask("roots/list", {})).roots[0].uri);
  }
}

async function old() {
  const { Server } = await import("@modelcontextprotocol/sdk/server/index.js");
  const { StdioServerTransport } = await import("@modelcontextprotocol/sdk/server/stdio.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const results = {
    "elicitation/create": types.ElicitResultSchema,
    "sampling/createMessage": types.CreateMessageResultSchema,
    "roots/list": types.ListRootsResultSchema,
  };
  const server = new Server(info, { capabilities });
  server.setRequestHandler(types.ListToolsRequestSchema, () => ({ tools }));
  server.setRequestHandler(types.CallToolRequestSchema, ({ params }, extra) => {
    const ask = (method, asked) => extra.sendRequest({ method, params: asked }, results[method]);
    return call(params, ask, extra.sendNotification);
  });
  await server.connect(new StdioServerTransport());
}

async function stateless() {
  const { Server, inputRequired } = await import("@modelcontextprotocol/server");
  const { serveStdio } = await import("@modelcontextprotocol/server/stdio");
  const questions = {
    "elicitation/create": () => inputRequired.elicit(form),
    "sampling/createMessage": () => inputRequired.createMessage(prompt),
    "roots/list": () => inputRequired.listRoots(),
  };
  const factory = () => {
    const server = new Server(info, { capabilities });
    server.setRequestHandler("tools/list", () => ({ tools }));
    server.setRequestHandler("tools/call", async ({ params }, ctx) => {
      const ask = async (method) => {
        const given = ctx.mcpReq.inputResponses?.it;
        if (given === undefined) {
          throw inputRequired({ inputRequests: { it: questions[method]() } });
        }
        return given;
      };
      try {
        return await call({ ...params, _meta: ctx.mcpReq._meta }, ask, ctx.mcpReq.notify);
      } catch (asked) {
        if (asked?.resultType === "input_required") return asked;
        throw asked;
      }
    });
    return server;
  };
  serveStdio(factory, { legacy: "reject" });
}

await (era === "old" ? old() : stateless());
