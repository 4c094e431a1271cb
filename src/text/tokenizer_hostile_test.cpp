// Untrusted tokenizer.json files: every file either loads or throws a UserError that contains its path.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/error.h"
#include "core/base/processor_time_testing.h"
#include "core/text/json.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A complete, small tokenizer that uses most of the format.
IndexedJson small_tokenizer() {
  return IndexedJson::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "NFC"}, {"type": "Replace", "pattern": {"String": "q"}, "content": "a"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+|[a-c]+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "ByteLevel"}]},
    "model": {"type": "BPE", "unk_token": null, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]}
  })");
}

std::string error_of(const std::string& json) {
  try {
    Tokenizer::parse(json, "model/tokenizer.json");
  } catch (const UserError& error) {
    EXPECT_THAT(error.where(), HasSubstr("model/tokenizer.json"));
    return error.where() + " | " + error.message();
  }
  return "no error";
}

/// The error of the small tokenizer with the value at `pointer` replaced.
std::string error_with(const std::string& pointer, const IndexedJson& value) {
  IndexedJson json = small_tokenizer();
  json[IndexedJson::json_pointer(pointer)] = value;
  return error_of(json.dump());
}

std::string error_without(const std::string& parent, const std::string& key) {
  IndexedJson json = small_tokenizer();
  json[IndexedJson::json_pointer(parent)].erase(key);
  return error_of(json.dump());
}

TEST(HostileTokenizer, TheSmallTokenizerIsFineBeforeItIsBroken) {
  const Tokenizer tokenizer = Tokenizer::parse(small_tokenizer().dump(), "small");
  EXPECT_THAT(tokenizer.encode("qb a", true), testing::ElementsAre(4, 2, 3, 0));
}

TEST(HostileTokenizer, NamesWhatItDoesNotSupport) {
  EXPECT_THAT(error_with("/model/type", "WordPiece"), AllOf(HasSubstr("model.type"), HasSubstr("'WordPiece'")));
  EXPECT_THAT(error_with("/model/type", "WordLevel"), AllOf(HasSubstr("'WordLevel'"), HasSubstr("not supported")));
  EXPECT_THAT(error_with("/normalizer", {{"type", "StripAccents"}}), HasSubstr("normalizer 'StripAccents'"));
  EXPECT_THAT(error_with("/normalizer/normalizers/0/type", "Nmt"),
              AllOf(HasSubstr("normalizer.normalizers[0].type"), HasSubstr("'Nmt'")));
  EXPECT_THAT(error_with("/pre_tokenizer/pretokenizers/0/type", "Whitespace"), HasSubstr("'Whitespace'"));
  EXPECT_THAT(error_with("/post_processor/type", "BertProcessing"), HasSubstr("'BertProcessing'"));
  EXPECT_THAT(error_with("/decoder/decoders/0/type", "CTC"), HasSubstr("'CTC'"));
  EXPECT_THAT(error_with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(error_with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(error_with("/version", "2.0"), HasSubstr("'2.0'"));
}

TEST(HostileTokenizer, NamesTheKeyThatIsMissingOrOfTheWrongType) {
  EXPECT_THAT(error_without("/model", "vocab"), AllOf(HasSubstr("model"), HasSubstr("'vocab' is missing")));
  EXPECT_THAT(error_without("/model", "merges"), HasSubstr("'merges' is missing"));
  EXPECT_THAT(error_without("/added_tokens/0", "content"), HasSubstr("added_tokens[0]"));
  EXPECT_THAT(error_with("/model/vocab", IndexedJson::array({1, 2})), HasSubstr("expected an object, found array"));
  EXPECT_THAT(error_with("/model/merges", 5), HasSubstr("expected an array, found number"));
  EXPECT_THAT(error_with("/model/merges/0", "a b c"), AllOf(HasSubstr("merges[0]"), HasSubstr("expected a merge")));
  EXPECT_THAT(error_with("/model/merges/0", IndexedJson::array({"a", 1})), HasSubstr("expected a merge"));
  EXPECT_THAT(error_with("/model/ignore_merges", "yes"), HasSubstr("expected true or false"));
  EXPECT_THAT(error_with("/added_tokens/0/special", 1), HasSubstr("added_tokens[0].special"));
  EXPECT_THAT(error_with("/decoder/decoders/0/start", -1), HasSubstr("is not between"));
  EXPECT_THAT(error_with("/decoder/decoders/0/start", ~uint64_t{0}), HasSubstr("is not between"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
}

TEST(HostileTokenizer, RefusesAVocabularyThatContradictsItself) {
  EXPECT_THAT(error_with("/model/vocab/zz", 1), HasSubstr("both have the id 1"));
  EXPECT_THAT(error_with("/model/vocab/zz", 4'000'000'000u), HasSubstr("is not between 0 and"));
  EXPECT_THAT(error_with("/model/vocab/zz", -1), HasSubstr("is not between 0 and"));
  EXPECT_THAT(error_with("/model/vocab/zz", 1.5), HasSubstr("not an integer"));
  EXPECT_THAT(error_with("/model/merges/0", "a zz"), HasSubstr("'zz' is not in the vocabulary"));
  EXPECT_THAT(error_with("/model/merges/0", "b a"), HasSubstr("'ba' is not in the vocabulary"));
}

TEST(HostileTokenizer, RefusesDeepNesting) {
  std::string json = R"({"model": {}, "normalizer": )";
  for (int i = 0; i < 100'000; ++i) json += R"({"type": "Sequence", "normalizers": [)";
  json += R"({"type": "NFC"})";
  for (int i = 0; i < 100'000; ++i) json += "]}";
  EXPECT_THAT(error_of(json + "}"), HasSubstr("nested deeper"));
}

TEST(HostileTokenizer, StopsARegularExpressionThatDoesNotEnd) {
  IndexedJson json = small_tokenizer();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "(?:a+)+$"}};
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
  try {
    tokenizer.encode(std::string(60, 'a') + "b", false);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.where(), HasSubstr("pretokenizers[0].pattern.Regex"));
  }
}

/// The error message of encoding `text`, or "none".
std::string error_of_encoding(const IndexedJson& json, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
  try {
    tokenizer.encode(text, true);
  } catch (const UserError& error) {
    return error.message();
  }
  return "none";
}

/// Each of these inputs hung or used all memory; none takes more than 6 s now.
class TimedTokenizer : public testing::Test {
 protected:
  TimedTokenizer() : begin_(processor_seconds()) {}
  ~TimedTokenizer() override { EXPECT_LT(processor_seconds() - begin_, 20); }

  static IndexedJson with_added(const std::string& content, const char* flag = nullptr) {
    IndexedJson json = small_tokenizer();
    IndexedJson token = json["added_tokens"][0];
    token["content"] = content;
    if (flag) token[flag] = true;
    json["added_tokens"].push_back(token);
    return json;
  }

 private:
  double begin_;
};

TEST_F(TimedTokenizer, LengtheningATextAgainAndAgainIsRefused) {
  const auto steps = [](int count, const IndexedJson& step) {
    IndexedJson json = small_tokenizer();
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", IndexedJson::array()}};
    for (int i = 0; i < count; ++i) json["normalizer"]["normalizers"].push_back(step);
    return json;
  };
  const IndexedJson doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  EXPECT_THAT(error_of_encoding(steps(34, doubling), "a"), HasSubstr("lengthened too much"));
  EXPECT_THAT(error_of_encoding(steps(2, doubling), "ab"), "none");
  const IndexedJson prefix = {{"type", "Prepend"}, {"prepend", std::string(100'000, 'a')}};
  EXPECT_THAT(error_of_encoding(steps(1, prefix), "a"), HasSubstr("lengthened too much"));
  EXPECT_THAT(error_of_encoding(steps(1, {{"type", "Prepend"}, {"prepend", "ab"}}), "a"), "none");
  EXPECT_THAT(error_of(steps(300, {{"type", "NFC"}}).dump()), HasSubstr("more than 256 steps"));
  IndexedJson marks = small_tokenizer();
  const IndexedJson mark = {
      {"type", "Metaspace"}, {"replacement", std::string(3000, ' ')}, {"prepend_scheme", "always"}, {"split", false}};
  marks["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {mark, mark, mark, mark}}};
  EXPECT_THAT(error_of_encoding(marks, "a b a b"), HasSubstr("lengthened too much"));
  IndexedJson growing = small_tokenizer();
  growing["decoder"] = {{"type", "Sequence"}, {"decoders", IndexedJson::array()}};
  for (int i = 0; i < 40; ++i) growing["decoder"]["decoders"].push_back(doubling);
  const Tokenizer tokenizer = Tokenizer::parse(growing.dump(), "tokenizer.json");
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{0, 0}, true), UserError);
}

TEST_F(TimedTokenizer, SpaceAroundAddedTokensIsLookedAtOnce) {
  const std::string spaces(1'000'000, ' ');
  EXPECT_EQ(Tokenizer::parse(with_added(" ", "lstrip").dump(), "t").encode(spaces, false).size(), spaces.size());
  EXPECT_EQ(Tokenizer::parse(with_added(" ", "rstrip").dump(), "t").encode(spaces, false).size(), spaces.size());
}

TEST_F(TimedTokenizer, LongAddedTokensAreSearchedInOnePass) {
  const IndexedJson json = with_added(std::string(30'000, 'a') + "b");
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "t");
  tokenizer.encode(std::string(1'000'000, 'a'), false);
  EXPECT_EQ(tokenizer.encode(std::string(30'005, 'a') + "b", false).size(), 6u);
}

TEST_F(TimedTokenizer, RunsOfCombiningMarksAreOrderedInOnePass) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0315\u0301";
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    IndexedJson json = small_tokenizer();
    json["normalizer"] = {{"type", form}};
    Tokenizer::parse(json.dump(), "t").pieces(text);
  }
}

TEST_F(TimedTokenizer, ExpressionsThatGoBackAtEachPlaceAreStopped) {
  for (const char* pattern : {"(?:a*a*a*a*a*b|a)", "(?:(?:\\p{L}+)+)+[!?]", "(?=((?:a|b)*c))x|(?:(a|b|(?:ab))+)+c",
                              "(?:(?:a|b)(?:a|b)?)*[cd]", "a*a*a*b|a"}) {
    IndexedJson json = small_tokenizer();
    json["normalizer"] = nullptr;
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", pattern}};
    const double begin = processor_seconds();
    EXPECT_THAT(error_of_encoding(json, std::string(3000, 'a') + "b" + std::string(5000, 'a')),
                HasSubstr("regular expression fails on a text"))
        << pattern;
    EXPECT_LT(processor_seconds() - begin, 5) << pattern;
  }
}

TEST_F(TimedTokenizer, WhatAPostProcessorAddsIsBounded) {
  IndexedJson json = small_tokenizer();
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = std::vector<int>(100'000, 4);
  EXPECT_THAT(error_of(json.dump()), HasSubstr("more than 1024 tokens"));
  json = small_tokenizer();
  for (int i = 0; i < 2000; ++i)
    json["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}});
  EXPECT_THAT(error_of(json.dump()), HasSubstr("more than 1024 tokens"));
}

TEST(HostileTokenizer, RefusesEveryTruncation) {
  const std::string json = small_tokenizer().dump();
  for (size_t size = 0; size < json.size(); ++size)
    EXPECT_THAT(error_of(json.substr(0, size)), HasSubstr("not valid JSON")) << size;
}

TEST(HostileTokenizer, LoadsOrRefusesRandomlyDamagedFiles) {
  const std::string json = small_tokenizer().dump();
  int refused = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = json;
    for (uint32_t i = 1 + random() % 4; i > 0; --i) damaged[random() % damaged.size()] = char(random());
    try {
      const Tokenizer tokenizer = Tokenizer::parse(damaged, "tokenizer.json");
      tokenizer.decode(tokenizer.encode("ab <s> qé\xFF", true), false);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(HostileTokenizer, LoadsOrRefusesRandomlyReplacedValues) {
  const IndexedJson flat = small_tokenizer().flatten();
  const std::vector<IndexedJson> values{
      nullptr, true, -1, 1e300, "", "\\", "(", "[", "\xF0\x9F\x99\x82", IndexedJson::array(), IndexedJson::object()};
  for (const auto& [pointer, original] : flat.items()) {
    for (const IndexedJson& value : values) {
      IndexedJson json = small_tokenizer();
      json[IndexedJson::json_pointer(pointer)] = value;
      try {
        const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
        tokenizer.decode(tokenizer.encode("ab <s> qé", true), false);
      } catch (const UserError& error) {
        EXPECT_FALSE(error.where().empty()) << pointer << " = " << value;
      }
    }
  }
}

/// A tokenizer in the form of SentencePiece's Unigram models.
IndexedJson unigram_tokenizer() {
  return read_json_file(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/tokenizers/unigram_bytes/tokenizer.json",
                        1 << 20);
}

TEST(HostileTokenizer, RefusesAUnigramModelThatContradictsItself) {
  const auto error_of_model = [](const char* key, const IndexedJson& value) {
    IndexedJson json = unigram_tokenizer();
    json["model"][key] = value;
    return error_of(json.dump());
  };
  const size_t tokens = unigram_tokenizer()["model"]["vocab"].size();
  EXPECT_THAT(error_of_model("unk_id", tokens), HasSubstr("model.unk_id"));
  EXPECT_THAT(error_of_model("unk_id", -1), HasSubstr("model.unk_id"));
  EXPECT_THAT(error_of_model("vocab", IndexedJson::array()), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(error_of_model("vocab", {{"a", 1}}), HasSubstr("model.vocab"));
  EXPECT_THAT(error_of_model("vocab", {{"a", -1.0, 3}, {"b", -2.0}}), HasSubstr("expected [token, score]"));
  EXPECT_THAT(error_of_model("vocab", IndexedJson::array({IndexedJson::array({"a", "-1"})})),
              HasSubstr("expected [token, score]"));
  EXPECT_THAT(error_of_model("byte_fallback", 1), HasSubstr("expected true or false"));
  IndexedJson without_unknown = unigram_tokenizer();
  without_unknown["model"].erase("unk_id");
  const Tokenizer tokenizer = Tokenizer::parse(without_unknown.dump(), "model/tokenizer.json");
  EXPECT_THROW(tokenizer.encode("\u0416", false), UserError);
}

TEST(HostileTokenizer, LoadsOrRefusesADamagedTableOfReplacements) {
  const IndexedJson original = unigram_tokenizer();
  const auto pointer = IndexedJson::json_pointer("/normalizer/normalizers/0/precompiled_charsmap");
  const std::string table = original[pointer];
  const auto load = [&](const std::string& damaged) {
    IndexedJson json = original;
    json[pointer] = damaged;
    const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
    tokenizer.encode("A \uFB01\uFB02 e\u0301 \u0416\U0001F1E9\U0001F1EA \uFF76\uFF9E", false);
  };
  for (const char* broken : {"", "AAAA", "AAAAAA==", "AQAAAA==", "/////w==", "not base64!"})
    EXPECT_THROW(load(broken), UserError) << broken;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string damaged = table;
    for (uint32_t i = 1 + random() % 6; i > 0; --i) damaged[random() % damaged.size()] = "AB/z09+Q"[random() % 8];
    try {
      load(damaged);
    } catch (const UserError& error) {
      EXPECT_THAT(error.where(), HasSubstr("precompiled_charsmap")) << seed;
    }
  }
}

TEST(HostileTokenizer, NamesAFileThatIsMissing) {
  EXPECT_THROW(Tokenizer::load("/no/such/tokenizer.json"), UserError);
  try {
    Tokenizer::load(testing::TempDir() + "/no-such-directory/tokenizer.json");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.where(), HasSubstr("no-such-directory"));
  }
}

TEST(HostileTokenizer, SaysThatADirectoryHasNoTokenizer) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "model_without_tokenizer";
  std::filesystem::create_directories(directory);
  try {
    Tokenizer::load(directory);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), HasSubstr("no tokenizer.json"));
  }
}

TEST(HostileTokenizer, NamesTheBrokenFileBesideIt) {
  const auto directory = std::filesystem::path(testing::TempDir()) / "model_with_broken_config";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "tokenizer.json") << small_tokenizer().dump();
  for (const char* broken : {"{", "[]", R"({"eos_token": 5})", R"({"chat_template": 5})", R"({"eos_token": {}})"}) {
    std::ofstream(directory / "tokenizer_config.json") << broken;
    try {
      Tokenizer::load(directory);
      FAIL() << "no error for " << broken;
    } catch (const UserError& error) {
      EXPECT_THAT(error.where(), HasSubstr("tokenizer_config.json")) << broken;
    }
  }
}

}  // namespace
}  // namespace hone
