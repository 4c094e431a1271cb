#include "core/untrusted_json.h"

#include <gtest/gtest.h>

#include <fstream>
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

TEST(UntrustedJson, MillionsOfEmptyListsAreRefused) {
  std::string lists = "[[]", texts = "[\"[],[]\"";
  for (int i = 0; i < 9'000'000; ++i) lists += ",[]";
  for (int i = 0; i < 1'000'000; ++i) texts += ",\"[[[],\\\"[]\"";
  EXPECT_TRUE(parse_json(lists + "]").is_discarded());
  EXPECT_EQ(parse_json(texts + "]").size(), 1'000'001u);
  EXPECT_FALSE(takes_much_memory("[" + std::string(1000, ',')));
}

TEST(UntrustedJson, WholeNumbersAreTakenWhereTheyFitAndNothingIsCast) {
  EXPECT_EQ(whole_number<int64_t>(Json::parse("-3")), -3);
  EXPECT_EQ(whole_number<uint64_t>(Json::parse("18446744073709551615")), UINT64_MAX);
  for (const char* text :
       {"18446744073709551615", "418446744037709551615", "1.0", "1e300", "true", "\"1\"", "null", "[]"})
    EXPECT_EQ(whole_number<int64_t>(Json::parse(text)), std::nullopt) << text;
  EXPECT_EQ(whole_number<uint32_t>(Json::parse("-1")), std::nullopt);
  EXPECT_EQ(whole_number<uint32_t>(Json::parse("4294967296")), std::nullopt);
}

TEST(UntrustedJson, AStreamIsReadUpToABound) {
  std::ifstream zero("/dev/zero");
  EXPECT_TRUE(parse_json(zero).is_discarded());
}

}  // namespace
}  // namespace hone
