#include "text/normalizer.h"

#include <gtest/gtest.h>

#include "text/utf8.h"

namespace hone {
namespace {

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
  // 300 marks of three classes after a letter that takes one of them in: beyond the length from which runs are sorted.
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

}  // namespace
}  // namespace hone
