// What a model writes as calls of tools, in each form: reading ends, and takes bytes that are there.
#include <cstdlib>

#include "core/text/json.h"
#include "fuzz_input.h"
#include "text/call_reader.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

const hone::Json& tools() {
  static const hone::Json list = hone::Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
    "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}, "c": {"anyOf": [{"type":
    "object"}]}}}}}])");
  return list;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const hone::CallForm& form : hone::call_forms()) {
    std::string_view text = hone::text_of(data, size);
    while (!text.empty()) {
      if (form.body == hone::CallBody::kChannels) {
        hone::read_message(form, text, false, true);
        const hone::ReadMessage read = hone::read_message(form, text, true, true);
        check(!read.more && read.size <= text.size());
        if (read.size == 0) break;
        text.remove_prefix(read.size);
        continue;
      }
      hone::read_calls(form, text, false, tools());
      const hone::ReadCalls read = hone::read_calls(form, text, true, tools());
      check(!read.more && read.size > 0 && read.size <= text.size());
      for (const hone::ToolCall& call : read.calls) check(!call.name.empty());
      text.remove_prefix(read.size);
    }
  }
  return 0;
}
