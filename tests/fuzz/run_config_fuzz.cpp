// The YAML of a run, down to the options that it resolves to.
#include "config/config_reader.h"
#include "config/resolve.h"
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hone::expect_answer([&] {
    const std::string text(hone::text_of(data, size));
    hone::resolve_config(hone::parse_config_text(text, "run.yaml"), hone::ConfigNode{});
  });
  return 0;
}
