#include "text/stream_decoder.h"

#include <gtest/gtest.h>

#include <random>

#include "core/json.h"
#include "text/utf8.h"

namespace hone {
namespace {

const std::filesystem::path kFixtures = std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers";

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  StreamDecoder decoder(tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.push(id);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
  return text + decoder.finish();
}

TEST(StreamDecoder, PiecesConcatenateToTheWholeDecoding) {
  for (const char* name : {"qwen3", "deepseek", "gpt_oss", "mixtral"}) {
    const Tokenizer tokenizer = Tokenizer::load(kFixtures / name);
    for (const auto& row : read_json_file(kFixtures / name / "encodings.json", 64 << 20)) {
      const std::vector<int32_t> ids = row["ids"];
      EXPECT_EQ(streamed(tokenizer, ids, false), tokenizer.decode(ids, false)) << name;
      EXPECT_EQ(streamed(tokenizer, ids, true), tokenizer.decode(ids, true)) << name;
    }
  }
}

TEST(StreamDecoder, RandomIdsDecodeAsAWholeDoes) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "qwen3");
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(random() % 50);
    for (int32_t& id : ids) id = int32_t(random() % uint32_t(tokenizer.vocab_size()));
    EXPECT_EQ(streamed(tokenizer, ids, false), tokenizer.decode(ids, false)) << "seed " << seed;
  }
}

TEST(StreamDecoder, HoldsACharacterBackUntilItIsWhole) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "qwen3");
  StreamDecoder decoder(tokenizer, false);
  // The four bytes of U+1F600 as byte tokens.
  const char* bytes[] = {"ð", "Ł", "ĺ", "Ģ"};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(decoder.push(*tokenizer.token_to_id(bytes[i])), "");
  EXPECT_EQ(decoder.push(*tokenizer.token_to_id(bytes[3])), "\U0001F600");
  EXPECT_EQ(decoder.push(*tokenizer.token_to_id(bytes[0])), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace hone
