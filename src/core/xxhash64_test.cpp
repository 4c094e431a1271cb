#include "core/xxhash64.h"

#include <gtest/gtest.h>

#include <vector>

namespace hone {
namespace {

// Values of the reference implementation (xxHash 0.8).
TEST(Xxh64, GivesTheReferencesValues) {
  constexpr uint64_t kSeed = 0x9E3779B185EBCA8Du;
  std::string digits, bytes;
  for (int i = 0; i < 3; ++i) {
    digits += "0123456789";
    for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  }
  bytes += "xyz";
  EXPECT_EQ(xxh64(""), 0xef46db3751d8e999u);
  EXPECT_EQ(xxh64("", kSeed), 0xb303d920ec349dfu);
  EXPECT_EQ(xxh64("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(xxh64("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(xxh64("abc", kSeed), 0x7e49c9d7e85a4ab6u);
  EXPECT_EQ(xxh64(digits), 0x13fa48a9f0832ee2u);
  EXPECT_EQ(xxh64(bytes), 0xe921a1b45bd779f8u);
  EXPECT_EQ(xxh64(bytes, kSeed), 0x1debfa3b8f3d9254u);
}

TEST(Xxh64, DoesNotDependOnHowTheBytesWereCut) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  const uint64_t whole = xxh64(text);
  for (size_t piece = 1; piece < 70; ++piece) {
    Xxh64 hash;
    for (size_t at = 0; at < text.size(); at += piece) hash.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hash.digest(), whole) << piece;
  }
}

TEST(Xxh64, IsWrittenInSixteenDigits) { EXPECT_EQ(hash_text(0x1f), "000000000000001f"); }

}  // namespace
}  // namespace hone
