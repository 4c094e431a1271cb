#include "app/serve/serve_page.h"

namespace hone {

std::string_view serve_page() {
  return R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hone serve</title>
<style>
:root { color-scheme: light dark; --back: #fbfaf7; --ink: #22231f; --soft: #6c6d66; --line: #d9d7ce; --mine: #e9eef7;
  --accent: #2456a6; --bad: #a3311f; }
@media (prefers-color-scheme: dark) { :root { --back: #1a1b1d; --ink: #e8e6df; --soft: #9b9a92; --line: #3a3b3d;
  --mine: #24304a; --accent: #8db4f2; --bad: #f09a88; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; display: flex;
  flex-direction: column; min-height: 100vh; }
header, form { max-width: 84rem; width: 100%; margin: 0 auto; padding: .75rem 1rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: end; border-bottom: 1px solid var(--line); }
h1 { font-size: 1.1rem; margin: 0 auto 0 0; }
label { font-size: .8rem; color: var(--soft); display: grid; gap: .1rem; }
input, textarea, button { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line);
  border-radius: .4rem; padding: .35rem .5rem; }
input[type=number] { width: 6rem; }
main { flex: 1; display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem;
  max-width: 84rem; width: 100%; margin: 0 auto; padding: 1rem; align-content: start; }
section h2 { font-size: .9rem; margin: 0 0 .5rem; color: var(--soft); font-weight: 600; }
.turn { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem .75rem; margin: 0 0 .5rem; border-radius: .5rem; }
.user { background: var(--mine); }
.thought { color: var(--soft); font-size: .9rem; border-left: 3px solid var(--line); border-radius: 0; }
.error { color: var(--bad); }
.note { color: var(--soft); font-size: .8rem; padding: 0 .75rem; margin-bottom: .75rem; }
form { position: sticky; bottom: 0; background: var(--back); border-top: 1px solid var(--line); display: flex; gap: .5rem; }
textarea { flex: 1; resize: vertical; min-height: 3rem; }
button { cursor: pointer; border-color: var(--accent); color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
</style>
</head>
<body>
<header>
  <h1>hone serve</h1>
  <label>System message <input id="system" size="28"></label>
  <label>Temperature <input id="temperature" type="number" min="0" step="0.1" placeholder="model's"></label>
  <label>Most tokens <input id="tokens" type="number" min="1" placeholder="all room"></label>
  <label>API key <input id="key" type="password" size="12" autocomplete="off"></label>
</header>
<main id="models" aria-live="polite"></main>
<form id="ask">
  <textarea id="text" aria-label="Message" placeholder="Message. Enter sends, Shift+Enter is a new line." required></textarea>
  <button id="send">Send</button>
  <button id="stop" type="button" hidden>Stop</button>
  <button id="clear" type="button">Clear</button>
</form>
<script>
"use strict";
const $ = id => document.getElementById(id);
const chats = [];  // {name, messages, box}
let running = null;  // an AbortController

function headers() {
  const result = {"Content-Type": "application/json"};
  if ($("key").value) result.Authorization = "Bearer " + $("key").value;
  return result;
}
function add(box, kind, text) {
  const line = document.createElement("div");
  line.className = kind;
  line.textContent = text;
  box.append(line);
  return line;
}
async function failure(response) {
  try { return (await response.json()).error.message; } catch { return response.status + " " + response.statusText; }
}
async function load() {
  if (chats.length) return true;
  const response = await fetch("/v1/models", {headers: headers()});
  if (!response.ok) throw new Error(await failure(response));
  for (const model of (await response.json()).data) {
    const box = document.createElement("section");
    const title = document.createElement("h2");
    title.textContent = model.id;
    box.append(title);
    $("models").append(box);
    chats.push({name: model.id, messages: [], box});
  }
}
async function answer(chat, text, signal) {
  const {box, messages} = chat;
  messages.push({role: "user", content: text});
  add(box, "turn user", text);
  const body = {model: chat.name, stream: true, stream_options: {include_usage: true}, messages: [...messages]};
  if ($("system").value) body.messages.unshift({role: "system", content: $("system").value});
  if ($("temperature").value !== "") body.temperature = Number($("temperature").value);
  if ($("tokens").value !== "") body.max_tokens = Number($("tokens").value);
  let thought = null, reply = null, content = "", finish = "", calls = "", usage = null, first = 0;
  const begin = performance.now();
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), body: JSON.stringify(body), signal});
    if (!response.ok) throw new Error(await failure(response));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (event === "data: [DONE]") continue;
        const json = JSON.parse(event.slice(6));
        if (json.error) throw new Error(json.error.message);
        if (json.usage) usage = json.usage;
        for (const choice of json.choices) {
          const delta = choice.delta;
          if (!first && (delta.content || delta.reasoning_content)) first = performance.now();
          if (delta.reasoning_content) {
            thought = thought || add(box, "turn thought", "");
            thought.textContent += delta.reasoning_content;
          }
          if (delta.content) {
            reply = reply || add(box, "turn", "");
            content += delta.content;
            reply.textContent = content;
          }
          for (const call of delta.tool_calls || []) calls += call.function.name + "(" + call.function.arguments + ")\n";
          if (choice.finish_reason) finish = choice.finish_reason;
        }
      }
    }
    if (calls) add(box, "turn", calls);
    if (usage) {
      const seconds = (performance.now() - (first || begin)) / 1000;
      const rate = usage.completion_tokens > 1 ? ((usage.completion_tokens - 1) / seconds).toFixed(1) + " tokens/s" : "";
      add(box, "note", [usage.completion_tokens + " tokens", rate, finish === "length" ? "stopped at the limit" : ""]
        .filter(Boolean).join(", "));
    }
  } catch (error) {
    add(box, error.name === "AbortError" ? "note" : "turn error", error.name === "AbortError" ? "stopped" : error.message);
  }
  if (content) messages.push({role: "assistant", content}); else messages.pop();
}
$("ask").addEventListener("submit", async event => {
  event.preventDefault();
  const text = $("text").value;
  if (running || !text.trim()) return;
  try { await load(); } catch (error) {
    $("models").replaceChildren();
    add($("models"), "error", error.message);
    return;
  }
  $("text").value = "";
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  await Promise.all(chats.map(chat => answer(chat, text, running.signal)));
  running = null;
  $("send").hidden = false;
  $("stop").hidden = true;
});
$("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("ask").requestSubmit(); }
});
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", () => {
  if (running) running.abort();
  for (const chat of chats) { chat.messages.length = 0; chat.box.replaceChildren(chat.box.firstChild); }
});
load().catch(() => {});
</script>
</body>
</html>
)html";
}

}  // namespace hone
