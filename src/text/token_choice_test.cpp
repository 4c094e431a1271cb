#include "text/token_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

using testing::Contains;
using testing::HasSubstr;

Tokenizer qwen() {
  return Tokenizer::load(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/tokenizers/qwen3/tokenizer.json");
}

std::string refused(const Json& special, std::vector<std::string> eot = {}) {
  try {
    Tokenizer tokenizer = qwen();
    tokenizer.choose(TokenChoice::parse(special, std::move(eot), "special_tokens"));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenChoice, GivesTokensARole) {
  Tokenizer tokenizer = qwen();
  EXPECT_FALSE(tokenizer.special_tokens().eos);
  tokenizer.choose(TokenChoice::parse({{"eos_token", "<|im_end|>"}, {"pad_token", nullptr}}, {"<|endoftext|>"}, ""));
  const SpecialTokens& special = tokenizer.special_tokens();
  EXPECT_EQ(special.eos, tokenizer.token_to_id("<|im_end|>"));
  EXPECT_FALSE(special.pad);
  EXPECT_THAT(special.stop, Contains(*tokenizer.token_to_id("<|im_end|>")));
  EXPECT_THAT(special.stop, Contains(*tokenizer.token_to_id("<|endoftext|>")));
}

TEST(TokenChoice, RefusesWhatTheTokenizerDoesNotHave) {
  EXPECT_THAT(refused({{"eos_token", "<|no_such|>"}}), HasSubstr("no token '<|no_such|>'"));
  EXPECT_THAT(refused(Json::object(), {"<|no_such|>"}), HasSubstr("eot_tokens"));
  EXPECT_THAT(refused({{"mask_token", "x"}}), HasSubstr("has no 'mask_token'"));
  EXPECT_THAT(refused({{"eos_token", 3}}), HasSubstr("not a token"));
}

}  // namespace
}  // namespace hone
