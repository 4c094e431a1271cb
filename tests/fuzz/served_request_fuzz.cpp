// What a client sends to hone serve: the head of a request, and its body as each form reads it.
#include <cstdlib>

#include "app/serve/openai.h"
#include "core/text/json.h"
#include "fuzz_input.h"
#include "report/http_server.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = hone::text_of(data, size);
  int refusal = 0;
  const auto head = hone::parse_http_head(bytes, refusal);
  if (!head && (refusal < 400 || refusal > 599)) std::abort();
  const size_t end = bytes.find("\n\n");
  const std::string_view body = end == std::string_view::npos ? bytes : bytes.substr(end + 2);
  for (const hone::ApiForm form : {hone::ApiForm::kChat, hone::ApiForm::kText}) {
    try {
      hone::read_request(form, body);
    } catch (const hone::ApiError& error) {
      if (hone::line_of(error.json()).empty()) std::abort();
    }
  }
  return 0;
}
