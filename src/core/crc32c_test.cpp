#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <string>

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

/// One bit at a time, as the definition has it.
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

}  // namespace
}  // namespace hone
