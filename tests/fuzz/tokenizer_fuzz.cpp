#include "fuzz_input.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hone::expect_answer([&] {
    const hone::Tokenizer tokenizer = hone::Tokenizer::parse(hone::text_of(data, size), "tokenizer.json");
    const hone::Encoding encoding = tokenizer.encode_with_offsets("ab qa <s> \xc3\xa9\xf0\x9f\x98\x80\xff 42\n", true);
    tokenizer.decode(encoding.ids, false);
    tokenizer.decode(std::vector<int32_t>{-1, 0, 1, 2, 3, 4, 1 << 30}, true);
  });
  return 0;
}
