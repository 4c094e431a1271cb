#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/normalizer.h"
#include "text/regex.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace hone {
namespace {

using testing::ElementsAre;

const std::filesystem::path kFixtures = std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers";

Tokenizer tokenizer_of(const std::string& name) { return Tokenizer::load(kFixtures / name); }

IndexedJson read(const std::filesystem::path& path) { return read_json_file(path, 64 << 20); }

/// The tokenizer.json of `base` with a JSON merge patch.
Tokenizer patched(const std::string& base, const IndexedJson& patch) {
  IndexedJson json = read(kFixtures / base / "tokenizer.json");
  json.merge_patch(patch);
  return Tokenizer::parse(json.dump(), base);
}

void expect_case(const Tokenizer& tokenizer, const IndexedJson& expected) {
  const std::string text = expected["text"];
  const std::vector<int32_t> ids = expected["ids"];
  EXPECT_EQ(tokenizer.encode(text, true), ids) << text;
  if (expected.contains("ids_no_special")) {
    EXPECT_EQ(tokenizer.encode(text, false), expected["ids_no_special"].get<std::vector<int32_t>>()) << text;
  }
  EXPECT_EQ(tokenizer.decode(ids, false), expected["decoded"].get<std::string>()) << text;
  EXPECT_EQ(tokenizer.decode(ids, true), expected["decoded_skip"].get<std::string>()) << text;
}

bool is_byte_level(const std::string& name) { return name != "mixtral" && !name.starts_with("unigram"); }

class FixtureTokenizer : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, FixtureTokenizer,
                         testing::Values("qwen3", "qwen3_5", "deepseek", "gpt_oss", "kimi_k2", "mixtral", "unigram",
                                         "unigram_bytes"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_P(FixtureTokenizer, EncodesAndDecodesAsHuggingFaceDoes) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const IndexedJson cases = read(kFixtures / GetParam() / "encodings.json");
  ASSERT_GT(cases.size(), 100u);
  for (const auto& expected : cases) expect_case(tokenizer, expected);
}

TEST_P(FixtureTokenizer, AnswersFromItsCacheAsFromTheMerges) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  for (const auto& expected : read(kFixtures / GetParam() / "encodings.json")) {
    const std::string text = expected["text"];
    EXPECT_EQ(tokenizer.encode(text, true), tokenizer.encode(text, true)) << text;
  }
}

/// A copy of the kimi_k2 fixture, to be changed.
class Tiktoken : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("hone_tiktoken_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(kFixtures / "kimi_k2", folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string refusal(const char* file, const std::string& text) {
    std::ofstream(folder_ / file) << text;
    try {
      Tokenizer::load(folder_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path folder_;
};

TEST_F(Tiktoken, HasTheTokensOfTheFileAndTheNamesOfTheConfiguration) {
  const Tokenizer tokenizer = Tokenizer::load(folder_);
  const std::optional<int32_t> first = tokenizer.token_to_id("[BOS]");
  ASSERT_TRUE(first);
  EXPECT_EQ(tokenizer.vocab_size(), *first + 256);
  EXPECT_EQ(tokenizer.special_tokens().bos, first);
  EXPECT_EQ(tokenizer.token_to_id("<|im_user|>"), *first + 3);
  EXPECT_TRUE(tokenizer.is_special(*first + 3));
  EXPECT_FALSE(tokenizer.is_special(*first + 17)) << "<|im_middle|>";
  EXPECT_EQ(tokenizer.id_to_token(*first + 255), fmt::format("<|reserved_token_{}|>", *first + 255));
}

TEST_F(Tiktoken, AnUnknownSplitAndDamagedLinesAreRefused) {
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal("tiktoken.model", "IQ== 0\nIg== 2\n"),
              HasSubstr("line 2 is not a token in base64 and the rank 1"));
  EXPECT_THAT(refusal("tiktoken.model", "IQ 0\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("tiktoken.model", "IQ==\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("tiktoken.model", "I_== 0\n"), HasSubstr("line 1"));
  EXPECT_THAT(refusal("tiktoken.model", "IQ== 0\nIQ== 1\n"), HasSubstr("the rank 1 is there twice"));
  EXPECT_THAT(refusal("config.json", R"({"model_type": "qwen"})"), HasSubstr("kimi_k25 and deepseek_v3, not \"qwen\""));
  EXPECT_THAT(refusal("config.json", "{}"), HasSubstr("not null"));
}

/// Well-formed text of ASCII, Latin, CJK, emoji and added tokens, without characters that NFC changes.
std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> kParts{"the",     " cat",      "X",  "9", "42",   " ",
                                               "\n",      "\r\n",      "'s", ".", "é",    "ß",
                                               "漢",      "字",        "한", "ж", "🙂", "👩‍👩‍👧",
                                               "<think>", "<|im_end|>"};
  std::string text;
  for (uint32_t i = random() % 60; i > 0; --i) text += kParts[random() % kParts.size()];
  return text;
}

TEST_P(FixtureTokenizer, GivesRandomTextBack) {
  if (!is_byte_level(GetParam())) return;  // adds a space before every section of text
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::string text = random_text(random);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text) << "seed " << seed;
  }
}

TEST_P(FixtureTokenizer, OffsetsCoverUnchangedTextWithoutGapOrOverlap) {
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  if (std::string(GetParam()).starts_with("unigram")) return;  // removes spaces between words
  const bool byte_level = is_byte_level(GetParam());
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::string text = random_text(random);
    const Encoding encoding = tokenizer.encode_with_offsets(text, true);
    ASSERT_EQ(encoding.offsets.size(), encoding.ids.size());
    EXPECT_EQ(encoding.ids, tokenizer.encode(text, true));
    uint32_t covered = 0;
    for (const ByteRange range : encoding.offsets) {
      // A "▁" of three bytes represents one space, and may be split: then each part has the space.
      if (byte_level) {
        EXPECT_EQ(range.begin, covered) << "seed " << seed;
      }
      EXPECT_LE(range.begin, covered) << "seed " << seed;
      EXPECT_LE(range.begin, range.end);
      covered = std::max(covered, range.end);
    }
    EXPECT_EQ(covered, text.size()) << "seed " << seed;
  }
}

TEST_P(FixtureTokenizer, TokenTextEqualsTheBytesOfItsOffsets) {
  if (!is_byte_level(GetParam())) return;  // tokens contain ▁ for the text's spaces
  const Tokenizer tokenizer = tokenizer_of(GetParam());
  const std::string text = "The quick brown fox's 1234 tests.\n\n  <think>ok</think> done";
  const Encoding encoding = tokenizer.encode_with_offsets(text, false);
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const ByteRange range = encoding.offsets[i];
    EXPECT_EQ(tokenizer.decode({{encoding.ids[i]}}, false), text.substr(range.begin, range.end - range.begin));
  }
}

TEST(Tokenizer, FollowsHuggingFaceInEverySupportedOption) {
  const IndexedJson variants = read(kFixtures / "variants.json");
  ASSERT_GT(variants.size(), 40u);
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant["base"].get<std::string>() + ": " + variant["name"].get<std::string>());
    const Tokenizer tokenizer = patched(variant["base"], variant["patch"]);
    for (const auto& expected : variant["cases"]) expect_case(tokenizer, expected);
  }
}

TEST(Tokenizer, OffsetsOfNormalisedTextPointIntoTheOriginal) {
  const Tokenizer tokenizer = tokenizer_of("qwen3");
  // "e" and a combining acute become "é", one or two byte tokens in this vocabulary; "x" and "y" keep their positions.
  const Encoding encoding = tokenizer.encode_with_offsets(
      "x\n"
      "e\u0301\n"
      "y",
      false);
  ASSERT_GE(encoding.ids.size(), 5u);
  EXPECT_EQ(encoding.offsets.front(), (ByteRange{0, 1}));
  EXPECT_EQ(encoding.offsets[1], (ByteRange{1, 2}));
  for (size_t i = 2; i + 2 < encoding.ids.size(); ++i) EXPECT_EQ(encoding.offsets[i], (ByteRange{2, 5}));
  EXPECT_EQ(encoding.offsets[encoding.ids.size() - 2], (ByteRange{5, 6}));
  EXPECT_EQ(encoding.offsets.back(), (ByteRange{6, 7}));
}

TEST(Tokenizer, OffsetsOfReplacedCharactersPointIntoTheOriginal) {
  const Tokenizer tokenizer = tokenizer_of("unigram_bytes");
  const Encoding encoding = tokenizer.encode_with_offsets("Ж \uFB01", false);  // bytes; a ligature that becomes "fi"
  ASSERT_GE(encoding.ids.size(), 4u);
  EXPECT_EQ(encoding.offsets.front().begin, 0u);
  EXPECT_EQ(encoding.offsets.back(), (ByteRange{3, 6}));
}

TEST(Tokenizer, TokensAroundTheTextHaveEmptyRanges) {
  const Tokenizer tokenizer = tokenizer_of("deepseek");
  const Encoding with = tokenizer.encode_with_offsets("hi", true);
  const Encoding without = tokenizer.encode_with_offsets("hi", false);
  ASSERT_EQ(with.ids.size(), without.ids.size() + 1);
  EXPECT_EQ(with.ids.front(), tokenizer.token_to_id("<｜begin▁of▁sentence｜>"));
  EXPECT_EQ(with.offsets.front(), (ByteRange{0, 0}));
}

TEST(Tokenizer, ReadsIllFormedUtf8AsReplacementCharacters) {
  const Tokenizer tokenizer = tokenizer_of("gpt_oss");
  // A stray continuation, a truncated sequence (one replacement), an overlong form (two), a surrogate (three).
  const std::string broken =
      "a\x80"
      "b\xE6\xBC"
      "c\xC0\xAF"
      "d\xED\xA0\x80"
      "e\xF0\x9F";
  const std::string repaired = "a\uFFFDb\uFFFDc\uFFFD\uFFFDd\uFFFD\uFFFD\uFFFDe\uFFFD";
  const Encoding encoding = tokenizer.encode_with_offsets(broken, false);
  EXPECT_EQ(encoding.ids, tokenizer.encode(repaired, false));
  EXPECT_EQ(tokenizer.decode(encoding.ids, false), repaired);
  EXPECT_EQ(encoding.offsets.back().end, broken.size());
}

TEST(Tokenizer, EncodesTheSameInManyThreads) {
  for (const char* name : {"qwen3", "mixtral", "unigram"}) {
    const Tokenizer tokenizer = tokenizer_of(name);
    const IndexedJson cases = read(kFixtures / name / "encodings.json");
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (int& mistakes : wrong) {
      threads.emplace_back([&] {
        for (int repeat = 0; repeat < 3; ++repeat)
          for (const auto& expected : cases)
            mistakes += tokenizer.encode(expected["text"].get<std::string>(), true) !=
                        expected["ids"].get<std::vector<int32_t>>();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(wrong, testing::Each(0)) << name;
  }
}

TEST(Tokenizer, EncodesLongPiecesInLessThanQuadraticTime) {
  const Tokenizer tokenizer = tokenizer_of("qwen3");
  // A quadratic merge of a million symbols would run for an hour.
  for (const char unit : {'a', ' ', '\n', '-'}) {
    const std::string text(1'000'000, unit);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = tokenizer_of("qwen3");
  EXPECT_EQ(tokenizer.vocab_size(), 4103);
  EXPECT_EQ(tokenizer.token_to_id("<|im_end|>"), 4098);
  EXPECT_EQ(tokenizer.id_to_token(4098), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(4103), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(4098));
  EXPECT_FALSE(tokenizer.is_special(4099));  // <think>
  EXPECT_FALSE(tokenizer.is_special(0));
  ASSERT_EQ(tokenizer.added_tokens().size(), 7u);
  EXPECT_EQ(tokenizer.added_tokens()[3].content, "<think>");
  EXPECT_EQ(tokenizer.decode({{-7, 1 << 30, 4098}}, false), "<|im_end|>");
}

TEST(Tokenizer, NumbersAddedTokensAfterTheVocabularyWhateverTheFileSays) {
  IndexedJson json = read(kFixtures / "qwen3/tokenizer.json");
  json["added_tokens"][3]["id"] = 5000;
  const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "qwen3");
  EXPECT_EQ(tokenizer.token_to_id("<think>"), 4099);
}

/// A model directory with the qwen3 tokenizer and other files.
class TokenizerDirectory : public testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        std::filesystem::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    std::filesystem::copy_file(kFixtures / "qwen3/tokenizer.json", directory_ / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(directory_ / name) << text; }

  std::filesystem::path directory_;
};

TEST_F(TokenizerDirectory, TakesSpecialTokensFromTheFilesBesideIt) {
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "lstrip": false}})");
  write("special_tokens_map.json", R"({"eos_token": "<|im_start|>", "pad_token": "<|endoftext|>"})");
  write("generation_config.json", R"({"bos_token_id": 4096, "eos_token_id": [4098, 4096], "pad_token_id": 7})");
  const Tokenizer tokenizer = Tokenizer::load(directory_);
  const SpecialTokens& special = tokenizer.special_tokens();
  EXPECT_EQ(special.bos, 4096);
  EXPECT_EQ(special.eos, 4098);
  EXPECT_EQ(special.pad, 4096);
  EXPECT_EQ(special.unk, std::nullopt);
  EXPECT_THAT(special.stop, ElementsAre(4098, 4096));
}

TEST_F(TokenizerDirectory, HasNoSpecialTokensWithoutThoseFiles) {
  const Tokenizer tokenizer = Tokenizer::load(directory_);
  EXPECT_EQ(tokenizer.special_tokens().eos, std::nullopt);
  EXPECT_TRUE(tokenizer.special_tokens().stop.empty());
  EXPECT_EQ(tokenizer.chat_template(), std::nullopt);
}

TEST_F(TokenizerDirectory, PrefersTheTemplateFileAndKeepsNamedTemplates) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(Tokenizer::load(directory_).chat_template(), "old");
  write("chat_template.jinja", "new");
  EXPECT_EQ(Tokenizer::load(directory_).chat_template(), "new");
  EXPECT_EQ(Tokenizer::load(directory_).chat_template("tool_use"), "tools");
}

TEST_F(TokenizerDirectory, ReadsAddedTokensThatOnlyTheFilesBesideItName) {
  const int32_t next = Tokenizer::load(directory_).vocab_size();
  write("tokenizer_config.json", R"({"eos_token": "<e>", "added_tokens_decoder": {
      "90001": {"content": "<b>", "special": false}, "90000": {"content": "<e>"},
      "4096": {"content": "<|endoftext|>", "special": true}}, "extra_special_tokens": ["<x>", "<b>"]})");
  write("added_tokens.json", R"({"<unread>": 90002})");
  const Tokenizer decoder = Tokenizer::load(directory_);
  EXPECT_THAT(decoder.encode("<e><b><x>", false), ElementsAre(next, next + 1, next + 2));
  EXPECT_EQ(decoder.special_tokens().eos, next);
  EXPECT_TRUE(decoder.is_special(next) && !decoder.is_special(next + 1) && decoder.is_special(next + 2));
  EXPECT_EQ(decoder.encode("<|endoftext|>", false), std::vector<int32_t>{4096});
  EXPECT_EQ(decoder.token_to_id("<unread>"), std::nullopt);

  write("tokenizer_config.json", R"({"additional_special_tokens": ["<b>"]})");
  write("added_tokens.json", R"({"<b>": 90001, "<a>": 90000})");
  const Tokenizer listed = Tokenizer::load(directory_);
  EXPECT_THAT(listed.encode("<a><b>", false), ElementsAre(next, next + 1));
  EXPECT_TRUE(!listed.is_special(next) && listed.is_special(next + 1));
}

TEST_F(TokenizerDirectory, EncodesChosenTokensAsTheTextThatTheyStandIn) {
  const Tokenizer tokenizer = Tokenizer::load(directory_);
  const std::string text = "a<|im_end|>b<|im_end|>";
  const auto first = [](const AddedToken&, ByteRange range) { return range.begin < 5; };
  const Encoding encoding = tokenizer.encode_with_offsets(text, false, first);
  EXPECT_EQ(std::count(encoding.ids.begin(), encoding.ids.end(), 4098), 1);
  EXPECT_EQ(encoding.ids.back(), 4098);
  EXPECT_EQ(tokenizer.decode(encoding.ids, false), text);
  EXPECT_EQ(encoding.offsets.back(), (ByteRange{12, 22}));
}

TEST_F(TokenizerDirectory, NamesASpecialTokenThatTheTokenizerLacks) {
  write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  try {
    Tokenizer::load(directory_);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("eos_token '</s>'"));
  }
}

std::string normalized(UnicodeForm form, const std::string& text) {
  AlignedText aligned(text);
  make_unicode_normalizer(form)->apply(aligned);
  return std::string(aligned.text());
}

TEST(UnicodeForm, ComposesDecomposesAndOrdersMarks) {
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "xe\u0301y \u212b \u1100\u1161\u11a8"), "x\u00e9y \u00c5 \uac01");
  EXPECT_EQ(normalized(UnicodeForm::kNfd, "\u00e9\uac01"), "e\u0301\u1100\u1161\u11a8");
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "a\u0301\u0316"), "\u00e1\u0316");
  EXPECT_EQ(normalized(UnicodeForm::kNfkc, "\ufb01\u2460\u00b2"), "fi12");
  EXPECT_EQ(normalized(UnicodeForm::kNfkd, "\u1e9b\u0323"), "s\u0323\u0307");
}

TEST(UnicodeForm, LongRunsOfMarksGiveWhatShortOnesGive) {
  // 300 marks of three classes after a letter that combines with one of them: longer than the threshold for sorting.
  std::string run;
  for (int i = 0; i < 300; ++i) run += i % 3 == 0 ? "\u0315" : i % 3 == 1 ? "\u0316" : "\u0301";
  std::string below, above, right;
  for (int i = 0; i < 100; ++i) {
    below += "\u0316";
    above += "\u0301";
    right += "\u0315";
  }
  EXPECT_EQ(normalized(UnicodeForm::kNfd, "e" + run + "x"), "e" + below + above + right + "x");
  EXPECT_EQ(normalized(UnicodeForm::kNfd, std::string("\u00e9") + run), "e" + below + "\u0301" + above + right);
  EXPECT_EQ(normalized(UnicodeForm::kNfc, "e" + run), "\u00e9" + below + above.substr(2) + right);
  EXPECT_EQ(normalized(UnicodeForm::kNfkd, "\ufb01" + run + run), "fi" + below + below + above + above + right + right);
  std::string ligatures;
  for (int i = 0; i < 100; ++i) ligatures += "\ufdfa\u0301";
  EXPECT_EQ(normalized(UnicodeForm::kNfc, ligatures), ligatures);
}

TEST(UnicodeForm, ChangedBytesPointToTheCharactersTheyCameFrom) {
  const std::string text = "ab\u00e9e\u0301\u212bz";  // 2 + 2 + 3 + 3 + 1 bytes
  AlignedText aligned(text);
  make_unicode_normalizer(UnicodeForm::kNfc)->apply(aligned);
  ASSERT_EQ(aligned.text(), "ab\u00e9\u00e9\u00c5z");
  EXPECT_EQ(aligned.origin(2, 4), (ByteRange{2, 4}));
  EXPECT_EQ(aligned.origin(4, 6), (ByteRange{4, 7}));
  EXPECT_EQ(aligned.origin(6, 8), (ByteRange{7, 10}));
  EXPECT_EQ(aligned.origin(8, 9), (ByteRange{10, 11}));
}

TEST(UnicodeForm, NoInertCharacterIsTheSecondHalfOfAComposition) {
  for (char32_t code = 0x80; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string character;
    append_utf8(character, code);
    const std::string parts = normalized(UnicodeForm::kNfd, character);
    size_t last = parts.size() - 1;
    while ((uint8_t(parts[last]) & 0xC0) == 0x80) --last;
    if (last == 0 || normalized(UnicodeForm::kNfc, parts) != character) continue;
    ASSERT_FALSE(is_inert(utf8_step(parts, last).code, UnicodeForm::kNfc)) << std::hex << uint32_t(code);
  }
}

using testing::HasSubstr;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  RegexMatches walk(regex);
  walk.start(text);
  std::vector<std::string> found;
  while (const auto match = walk.next()) found.push_back(text.substr(match->begin, match->end - match->begin));
  return found;
}

TEST(Regex, HasOnigurumasMeaningOfAnchorsAndDot) {
  EXPECT_THAT(matches("^a", "a\na\r\na"), ElementsAre("a", "a", "a"));
  EXPECT_THAT(matches("a$", "a\na\r\na"), ElementsAre("a", "a"));
  EXPECT_THAT(matches(".", "a\nb\r"), ElementsAre("a", "b", "\r"));
}

TEST(Regex, ReadsIntervalsAsOnigurumaDoes) {
  EXPECT_THAT(matches("a{,2}b", "aaab{,2}"), ElementsAre("aab"));
  EXPECT_THAT(matches("a{2}", "aaaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(matches("a{x}", "a{x}"), ElementsAre("a{x}"));
}

TEST(Regex, WhiteSpaceIsUnicodesWithoutTheVowelSeparator) {
  EXPECT_THAT(matches("\\s", "\u0085\u00a0\u180e\u200b\u2028\u3000"),
              ElementsAre("\u0085", "\u00a0", "\u2028", "\u3000"));
}

TEST(Regex, LettersOfLaterUnicodeVersionsCount) {
  EXPECT_THAT(matches("\\p{L}+", "a\U00031350b"), ElementsAre("a\U00031350b"));
  EXPECT_THAT(matches("[\\p{P}\\p{S}]+", "x\U0001FA77!"), ElementsAre("\U0001FA77!"));
  EXPECT_THAT(matches("\\p{Han}", "\U00031350\U00016D43"), ElementsAre("\U00031350"));
}

TEST(Regex, ScriptsAreNotScriptExtensions) {
  // U+3001 is common punctuation that script extensions assign to Han.
  EXPECT_THAT(matches("\\p{Han}+", "漢、字"), ElementsAre("漢", "字"));
}

TEST(Regex, CaselessContractionsFoldTheLongS) {
  EXPECT_THAT(matches("(?i:'s|'t)", "'S'ſ'T"), ElementsAre("'S", "'ſ", "'T"));
}

TEST(Regex, EmptyMatchesAdvance) { EXPECT_THAT(matches("x*", "éxx"), ElementsAre("", "xx")); }

TEST(Regex, MatchesFarBeyondTheJitStack) {
  const std::string text(300'000, 'a');
  EXPECT_THAT(matches("(?:a|b)+", text), ElementsAre(text));
}

TEST(Regex, RefusesWhatMeansSomethingElse) {
  for (const char* pattern : {"[a&&b]", "[[:alpha:]]", "[a[b]]", "(?<x>a)", "(a)\\1", "\\k<x>", "\\R", "\\X", "a{1,2}+",
                              "(?m:.)", "a(?i)b", "(*ACCEPT)", "\\pL", "\\xE9", "\\C", "\\Qa\\E", "\\"}) {
    try {
      const Regex regex(pattern, "tokenizer.json: pre_tokenizer.pattern");
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.where(), "tokenizer.json: pre_tokenizer.pattern");
      EXPECT_THAT(error.message(), HasSubstr("not supported")) << pattern;
    }
  }
}

TEST(Regex, NamesAPatternThatDoesNotCompile) {
  for (const char* pattern : {"(a", "a)", "*", "[z-a]", "\\p{Nope}", "(?<=a+)b"})
    EXPECT_THROW(Regex(pattern, "here"), UserError) << pattern;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  StreamDecoder decoder(tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    text += decoder.push(id);
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
  }
  return text + decoder.finish();
}

TEST(EncodeScratch, KeepsNoMemoryOfALongPiece) {
  EncodeScratch scratch;
  scratch.symbols.resize(100);
  scratch.new_symbols.resize(1'000'000);
  scratch.merge.merges.resize(1'000'000);
  scratch.merge.next.resize(1'000'000);
  scratch.forget_long_pieces();
  EXPECT_EQ(scratch.symbols.size(), 100u);
  EXPECT_EQ(scratch.new_symbols.capacity() + scratch.merge.merges.capacity() + scratch.merge.next.capacity(), 0u);
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

TEST(StreamDecoder, LongTextsThatNothingCompletesTakeTimeInProportion) {
  // Decoding everything held back for each token would take hours.
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "qwen3");
  const auto in_pieces = [&](const std::vector<int32_t>& ids, bool skip_special_tokens) {
    StreamDecoder decoder(tokenizer, skip_special_tokens);
    std::string text;
    for (const int32_t id : ids) text += decoder.push(id);
    return text + decoder.finish();
  };
  std::vector<int32_t> ids;
  for (int i = 0; i < 100'000; ++i) ids.push_back(*tokenizer.token_to_id(i % 2 == 0 ? "ð" : "ĺ"));
  for (const int32_t id : tokenizer.encode("\uFFFD\uFFFD ä \U0001F600", false)) ids.push_back(id);
  EXPECT_TRUE(in_pieces(ids, false) == tokenizer.decode(ids, false));
  ids.assign(100'000, *tokenizer.token_to_id("<|im_end|>"));
  for (const int32_t id : tokenizer.encode("one two", false)) ids.push_back(id);
  EXPECT_EQ(in_pieces(ids, true), "one two");
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

using testing::Contains;

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

TEST(NewTokens, HaveTheIdsAfterTheLastOne) {
  const Tokenizer before = tokenizer_of("qwen3");
  const NewTokens more = {{"<plain>", "<|im_end|>"}, {"<special>"}};
  const Tokenizer after = Tokenizer::load(kFixtures / "qwen3", more);
  const int32_t next = before.vocab_size();
  EXPECT_EQ(after.token_to_id("<plain>"), next);
  EXPECT_EQ(after.token_to_id("<special>"), next + 1);
  EXPECT_EQ(after.vocab_size(), next + 2);
  EXPECT_EQ(after.token_to_id("<|im_end|>"), before.token_to_id("<|im_end|>")) << "it is there";
  const std::vector<int32_t> ids = {next, next + 1};
  EXPECT_EQ(after.encode("<plain><special>", false), ids);
  EXPECT_EQ(after.decode(ids, true), "<plain>");
}

}  // namespace
}  // namespace hone
