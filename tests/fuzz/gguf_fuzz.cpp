// A GGUF file: its keys as config.json and as a tokenizer, and the numbers of its tensors.
#include <algorithm>

#include "app/export/gguf_tokenizer.h"
#include "core/text/json.h"
#include "fuzz_input.h"
#include "models/gguf.h"
#include "models/registry.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile input("model.gguf");
  static constexpr int64_t kMostValues = 1 << 14;
  input.write(hone::text_of(data, size));
  hone::expect_answer([] {
    const hone::GgufFile file(input.path());
    for (const hone::GgufEntry& entry : file.entries()) {
      const int64_t first = entry.numel() / 3, count = std::min(entry.numel() - first, kMostValues);
      std::vector<float> values(static_cast<size_t>(count));
      hone::expect_answer([&] { file.read_floats(entry, first, count, values.data()); });
    }
    hone::expect_answer([&] {
      const hone::GgufArchitecture& architecture = hone::gguf_architecture_of(file.metadata());
      hone::read_decoder_config(
          hone::HfConfig(hone::config_of_gguf(architecture, file.metadata(), hone::gguf_facts(file)), "model.gguf"));
    });
    if (const auto vocabulary = hone::tokenizer_keys(file.metadata())) {
      const hone::TokenizerFiles files = hone::tokenizer_of_gguf(*vocabulary, 512, "model.gguf");
      hone::Tokenizer::parse(files.tokenizer.dump(), "tokenizer.json").encode("A text, 12 x.", true);
    }
  });
  return 0;
}
