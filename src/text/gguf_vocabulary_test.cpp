#include "text/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kTokenizers = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers";

class GgufVocabularies : public testing::Test {
 protected:
  GgufVocabularies()
      : folder_(fs::path(testing::TempDir()) / (std::string("hone_gguf_vocabulary_") +
                                                testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~GgufVocabularies() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string refusal() const {
    std::vector<std::string> notes;
    try {
      gguf_vocabulary(folder_, 1 << 13, notes);
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  }
  /// The tokenizer that is made of the file's keys.
  static Tokenizer back(const GgufVocabulary& vocabulary) {
    return Tokenizer::parse(tokenizer_of_gguf(vocabulary, 512, "model.gguf").tokenizer.dump(), "model.gguf");
  }

  fs::path folder_;
};

TEST_F(GgufVocabularies, TokenizersOfTheTableEncodeTheSameAfterwards) {
  const std::pair<const char*, const char*> known[] = {{"qwen3", "qwen2"},
                                                       {"qwen3_5", "qwen35"},
                                                       {"gpt_oss", "gpt-4o"},
                                                       {"deepseek", "deepseek-v3"},
                                                       {"kimi_k2", "kimi-k2"}};
  for (const auto& [name, pre] : known) {
    std::vector<std::string> notes;
    const Tokenizer tokenizer = Tokenizer::load(kTokenizers / name);
    const int64_t rows = tokenizer.vocab_size() + 5;
    const GgufVocabulary vocabulary = gguf_vocabulary(kTokenizers / name, rows, notes);
    EXPECT_EQ(vocabulary.model, "gpt2");
    EXPECT_EQ(vocabulary.pre, pre);
    EXPECT_EQ(static_cast<int64_t>(vocabulary.tokens.size()), rows);
    EXPECT_EQ(vocabulary.types.back(), GgufVocabulary::kUnused);
    EXPECT_EQ(vocabulary.tokens.back(), "[PAD" + std::to_string(rows - 1) + "]");
    const Tokenizer again = back(vocabulary);
    EXPECT_EQ(again.vocab_size(), tokenizer.vocab_size());
    std::ifstream file(kTokenizers / name / "encodings.json");
    int compared = 0;
    for (const Json& row : Json::parse(file)) {
      const auto text = row.at("text").get<std::string>();
      EXPECT_EQ(again.encode(text, false), tokenizer.encode(text, false)) << name << ": " << text;
      EXPECT_EQ(again.decode(tokenizer.encode(text, false), false),
                tokenizer.decode(tokenizer.encode(text, false), false));
      ++compared;
    }
    EXPECT_GT(compared, 50);
    for (const AddedToken& token : tokenizer.added_tokens()) {
      EXPECT_EQ(again.token_to_id(token.content), token.id);
      EXPECT_EQ(again.is_special(token.id), token.special);
    }
  }
}

/// SentencePiece's BPE: merges of every way to make a token, by falling scores.
Json sentencepiece() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocab[name] = 3 + byte;
  }
  Json merges = Json::array();
  const std::pair<const char*, const char*> ways[] = {{"a", "b"}, {"▁", "ab"}, {"▁a", "b"}, {"ab", "c"}};
  int id = 259;
  // "▁a" is worth more than "▁ab", which can be made in two ways.
  for (const char* token : {"ab", "▁a", "▁ab", "abc"}) vocab[token] = id++;
  for (const char* letter : {"▁", "a", "b", "c"}) vocab[letter] = id++;
  merges.push_back({"a", "b"});
  merges.push_back({"▁", "a"});
  for (const auto& [left, right] : {ways[1], ways[2], ways[3]}) merges.push_back({left, right});
  const auto special = [](const char* token, int at) {
    return Json{{"id", at},        {"content", token},    {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const Json normalizers = {{{"type", "Prepend"}, {"prepend", "▁"}},
                            {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}};
  const Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  return {{"version", "1.0"},
          {"added_tokens", {special("<unk>", 0), special("<s>", 1), special("</s>", 2)}},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

/// Mistral's tokenizers since Nemo: the case of another with their pattern.
TEST_F(GgufVocabularies, TekkenEncodesTheSameAfterwards) {
  Json json = read_json(kTokenizers / "gpt_oss/tokenizer.json");
  json["model"]["ignore_merges"] = true;
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?)"
      R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+)"
      R"(|\s+(?!\S)|\s+)";
  write("tokenizer.json", json.dump());
  std::vector<std::string> notes;
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  const GgufVocabulary vocabulary = gguf_vocabulary(folder_, tokenizer.vocab_size(), notes);
  EXPECT_EQ(vocabulary.pre, "tekken");
  const Tokenizer again = back(vocabulary);
  for (const char* text : {"HelloWorld, it's 1234 words.\n\n  Yes/no", "Ünïcode ÉCOLE a\tb", "don't", ""}) {
    EXPECT_EQ(again.encode(text, false), tokenizer.encode(text, false)) << text;
  }
}

TEST_F(GgufVocabularies, SentencePieceHasScores) {
  Json json = sentencepiece();
  write("tokenizer.json", json.dump());
  write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})");
  std::vector<std::string> notes;
  const GgufVocabulary vocabulary = gguf_vocabulary(folder_, 267, notes);
  EXPECT_EQ(vocabulary.model, "llama");
  EXPECT_EQ(vocabulary.add_bos, false);
  EXPECT_EQ(vocabulary.add_space_prefix, true);
  EXPECT_EQ(vocabulary.bos, 1);
  EXPECT_EQ(vocabulary.types[0], GgufVocabulary::kUnknown);
  EXPECT_EQ(vocabulary.types[2], GgufVocabulary::kControl);
  EXPECT_EQ(vocabulary.types[3], GgufVocabulary::kByte);
  EXPECT_EQ(vocabulary.types[260], GgufVocabulary::kNormal);
  EXPECT_GT(vocabulary.scores[259], vocabulary.scores[260]);
  EXPECT_GT(vocabulary.scores[260], vocabulary.scores[261]);
  const Tokenizer tokenizer = Tokenizer::load(folder_), again = back(vocabulary);
  for (const char* text : {"ab", "abc ab a", "  aabbcc", "xäb<s>ab", "caab", ""}) {
    EXPECT_EQ(again.encode(text, true), tokenizer.encode(text, true)) << text;
    EXPECT_EQ(again.decode(again.encode(text, true), true), tokenizer.decode(tokenizer.encode(text, true), true));
  }
  json["model"]["merges"].erase(json["model"]["merges"].begin() + 2);  // one of two ways
  write("tokenizer.json", json.dump());
  EXPECT_THAT(refusal(), HasSubstr("merges that SentencePiece would not make"));
}

TEST_F(GgufVocabularies, WhatFilesCannotSayIsRefused) {
  EXPECT_THAT(refusal(), HasSubstr("no tokenizer.json"));
  Json json = read_json(kTokenizers / "qwen3/tokenizer.json");
  const auto with = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    write("tokenizer.json", changed.dump());
    return refusal();
  };
  EXPECT_THAT(with("normalizer", {{"type", "Lowercase"}}), testing::Not(""));
  EXPECT_THAT(with("normalizer", {{"type", "NFKC"}}), HasSubstr("normaliser"));
  Json steps = json["pre_tokenizer"];
  steps["pretokenizers"][0]["pattern"]["Regex"] = R"(\p{L}+|\p{N})";
  EXPECT_THAT(with("pre_tokenizer", steps), HasSubstr("the pre-tokenizer is none"));
  Json model = json["model"];
  model["ignore_merges"] = true;
  EXPECT_THAT(with("model", model), HasSubstr("the pre-tokenizer is none"));
  write("tokenizer.json", json.dump());
  EXPECT_EQ(refusal(), "");
  std::vector<std::string> notes;
  EXPECT_THROW(gguf_vocabulary(folder_, 4000, notes), UserError);
  fs::copy_file(kTokenizers / "mixtral/tokenizer.json", folder_ / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("merges that SentencePiece would not make"));
  fs::copy_file(kTokenizers / "unigram/tokenizer.json", folder_ / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("Unigram"));
}

TEST_F(GgufVocabularies, DamagedVocabulariesAreRefused) {
  const GgufVocabulary good = {.model = "gpt2",
                               .pre = "gpt-2",
                               .tokens = {"a", "b", "ab", "<end>"},
                               .types = {1, 1, 1, 3},
                               .scores = {},
                               .merges = {"a b"},
                               .eos = 3,
                               .add_eos = true,
                               .chat_template = "{{ messages }}"};
  const auto message = [](const GgufVocabulary& vocabulary) -> std::string {
    try {
      tokenizer_of_gguf(vocabulary, 512, "model.gguf");
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  };
  const TokenizerFiles files = tokenizer_of_gguf(good, 512, "model.gguf");
  EXPECT_EQ(files.config["eos_token"], "<end>");
  EXPECT_EQ(files.generation["eos_token_id"], 3);
  EXPECT_EQ(files.chat_template, "{{ messages }}");
  EXPECT_THAT(back(good).encode("ab", true), testing::ElementsAre(2, 3));
  const auto changed = [&](const std::function<void(GgufVocabulary&)>& change) {
    GgufVocabulary bad = good;
    change(bad);
    return message(bad);
  };
  EXPECT_THAT(changed([](auto& v) { v.pre = "new"; }), HasSubstr("the pre-tokenizer 'new' is not known"));
  EXPECT_THAT(changed([](auto& v) { v.model = "bert"; }), HasSubstr("'bert' is not read"));
  EXPECT_THAT(changed([](auto& v) { v.types.pop_back(); }), HasSubstr("another length"));
  EXPECT_THAT(changed([](auto& v) { v.tokens[1] = "a"; }), HasSubstr("appears twice"));
  EXPECT_THAT(changed([](auto& v) { v.tokens[1] = "\xFF"; }), HasSubstr("not UTF-8"));
  EXPECT_THAT(changed([](auto& v) { v.eos = 4; }), HasSubstr("special token"));
  EXPECT_THAT(changed([](auto& v) { v.bos = -1; }), HasSubstr("special token"));
  EXPECT_THAT(changed([](auto& v) { v.merges = {"a c"}; }), HasSubstr("a merge is not of tokens"));
  EXPECT_THAT(changed([](auto& v) { v.merges = {"ab"}; }), HasSubstr("a merge is not of tokens"));
  EXPECT_THAT(changed([](auto& v) { v.model = "llama"; }), HasSubstr("scores has another length"));
}

}  // namespace
}  // namespace hone
