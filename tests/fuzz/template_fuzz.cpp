#include "core/text/json.h"
#include "fuzz_input.h"
#include "text/chat_template.h"

namespace {

hone::ChatInput chat() {
  hone::ChatInput input;
  input.messages = hone::Json::parse(R"([
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "wh\u00e4t?"}]},
    {"role": "assistant", "content": "a b", "reasoning_content": "r", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
    {"role": "tool", "content": "<x>", "tool_call_id": "1"},
    {"role": "assistant", "content": "done"}])");
  input.tools =
      hone::Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2}}}])");
  input.variables = hone::Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::ChatInput input = chat();
  hone::expect_answer([&] {
    const hone::ChatTemplate compiled(hone::text_of(data, size), "chat_template.jinja", std::time_t{0});
    compiled.render(input);
  });
  return 0;
}
