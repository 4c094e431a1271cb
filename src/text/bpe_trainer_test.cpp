#include "text/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/json.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (int i = 0; i < 50; ++i)
    texts.push_back("the cat and the other cat thought about the weather, " + std::to_string(i) +
                    " times<|im_end|>\nein Übermut, 漢字 e\u0301 ааа aaaa");
  return texts;
}

BpeTrainerOptions options(int32_t vocab_size) { return {vocab_size, {"<|endoftext|>", "<|im_end|>"}, {"<think>"}, 2}; }

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  const std::vector<std::string> texts{"ab ab ab cd cd", "cd ab"};
  const Json json = train_bpe(texts, {258, {}, {}, 2});
  // "ab" is there 4 times, "cd" 3 times, " a" 3 times: of equals the smaller ids, letters before the space.
  EXPECT_EQ(json["model"]["merges"].dump(), R"([["a","b"],["c","d"]])");
}

TEST(BpeTrainer, MakesATokenizerThatGivesTextsBack) {
  const std::vector<std::string> texts = corpus();
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, options(300)).dump(), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.token_to_id("<|endoftext|>"), 297);
  EXPECT_EQ(tokenizer.token_to_id("<|im_end|>"), 298);
  EXPECT_EQ(tokenizer.token_to_id("<think>"), 299);
  EXPECT_TRUE(tokenizer.is_special(298));
  EXPECT_FALSE(tokenizer.is_special(299));
  EXPECT_EQ(tokenizer.encode(" the", false).size(), 1u);
  const std::string text = "the cat of Übermut 🙂 12<think>";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
}

TEST(BpeTrainer, EveryMergeIsMadeByEncodingWhatItSpells) {
  const std::vector<std::string> texts = corpus();
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, options(400)).dump(), "trained");
  for (int32_t id = 256; id < tokenizer.vocab_size() - 3; ++id) {
    const std::string text = tokenizer.decode({{id}}, false);
    if (text.find("\uFFFD") != std::string::npos) continue;  // part of a character
    EXPECT_THAT(tokenizer.encode(text, false), testing::ElementsAre(id)) << text;
  }
}

TEST(BpeTrainer, DoesNotDependOnTheOrderOfTheTexts) {
  std::vector<std::string> texts = corpus();
  const Json forward = train_bpe(texts, options(400));
  std::reverse(texts.begin(), texts.end());
  EXPECT_EQ(forward, train_bpe(texts, options(400)));
}

TEST(BpeTrainer, StopsWhenNoPairIsFrequentEnough) {
  const std::vector<std::string> texts{"ab ab xy"};
  const Tokenizer tokenizer = Tokenizer::parse(train_bpe(texts, {1000, {}, {}, 2}).dump(), "trained");
  EXPECT_EQ(tokenizer.vocab_size(), 257);
}

TEST(BpeTrainer, DoesNotLearnAddedTokensOfTheTexts) {
  const std::vector<std::string> texts(10, "<|im_end|>");
  EXPECT_TRUE(train_bpe(texts, options(300))["model"]["merges"].empty());
}

TEST(BpeTrainer, RefusesAVocabularyWithoutRoom) {
  const std::vector<std::string> texts = corpus();
  EXPECT_THROW(train_bpe(texts, options(258)), UserError);
  EXPECT_NO_THROW(train_bpe(texts, options(259)));
  EXPECT_THROW(train_bpe(texts, {400, {"<s>", "<s>"}, {}, 2}), UserError);
  EXPECT_THROW(train_bpe(texts, {400, {""}, {}, 2}), UserError);
}

}  // namespace
}  // namespace hone
