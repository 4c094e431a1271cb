#include "core/sip_hash.h"

#include <gtest/gtest.h>

#include <string>

namespace hone {
namespace {

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

}  // namespace
}  // namespace hone
