#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/sip_hash.h"

namespace hone {
namespace {

TEST(Crc32c, MatchesThePublishedVectors) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
}

TEST(Crc32c, TheMaskRotatesAndAdds) {
  // 0xE3069283 rotated right by 15 is 0x2507C60D; plus 0xA282EAD8.
  EXPECT_EQ(masked_crc32c("123456789"), 0x2507C60Du + 0xA282EAD8u);
}

/// Bit by bit, as in the definition.
uint32_t by_bits(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, LongInputsOfAnyLengthAgreeWithTheDefinition) {
  std::string bytes;
  for (int i = 0; i < 3 * 4096 * 2 + 77; ++i) bytes += static_cast<char>(i * 2654435761u >> 13);
  for (const size_t length : {size_t{7}, size_t{8}, size_t{4096}, size_t{3 * 4096 - 1}, size_t{3 * 4096},
                              size_t{3 * 4096 + 9}, bytes.size()}) {
    EXPECT_EQ(crc32c(std::string_view(bytes).substr(0, length)), by_bits(bytes.substr(0, length))) << length;
  }
}

TEST(Crc32c, PartsJoinToTheWhole) {
  std::string bytes;
  for (int i = 0; i < 40'000; ++i) bytes += static_cast<char>(i * 40503u >> 7);
  const std::string_view all(bytes);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{12'345}, all.size()}) {
    const uint32_t first = crc32c(all.substr(0, cut)), second = crc32c(all.substr(cut));
    EXPECT_EQ(join_crc32c(first, second, all.size() - cut), crc32c(all)) << cut;
    EXPECT_EQ(extend_crc32c(first, std::as_bytes(std::span(all.substr(cut)))), crc32c(all)) << cut;
  }
}

// Appendix A of the paper, and two of the test vectors of the authors' program.
TEST(SipHash, GivesThePublishedValues) {
  const SipKey key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  std::string text;
  EXPECT_EQ(sip_hash(text, key), 0x726fdb47dd0e0e31u);
  for (char i = 0; i < 8; ++i) text += i;
  EXPECT_EQ(sip_hash(text, key), 0x93f5f5799a932462u);
  for (char i = 8; i < 15; ++i) text += i;
  EXPECT_EQ(sip_hash(text, key), 0xa129ca6149be45e5u);
}

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
