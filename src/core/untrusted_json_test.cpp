#include "core/untrusted_json.h"

#include <gtest/gtest.h>

#include <sstream>

namespace hone {
namespace {

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(UntrustedJson, DeepNestingIsRefusedAndTextIsNot) {
  EXPECT_TRUE(parse_json(nested(64)).is_array());
  EXPECT_TRUE(parse_json(nested(65)).is_discarded());
  EXPECT_TRUE(parse_json(nested(1'000'000)).is_discarded());
  EXPECT_TRUE(parse_json(R"({"a": ")" + std::string(1000, '[') + R"(\""})").is_object());
  EXPECT_TRUE(parse_json("{").is_discarded());
  std::istringstream file(R"({"b": 1, "a": 2})");
  EXPECT_EQ(parse_json(file).begin().key(), "b");
}

}  // namespace
}  // namespace hone
