#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/ordered_object.h"
#include "core/base/processor_time_testing.h"
#include "core/text/json.h"
#include "core/text/json_value.h"
#include "core/text/untrusted_json.h"

namespace hone {
namespace {

std::string name(int i) { return "model.layers." + std::to_string(i % 61) + ".mlp.experts." + std::to_string(i / 61); }

std::string object_text(int names) {
  std::string text = "{";
  for (int i = 0; i < names; ++i) text += (i ? ",\"" : "\"") + name(i) + "\":" + std::to_string(i);
  return text + "}";
}

TEST(OrderedObject, KeepsTheOrderAndFindsEveryKey) {
  for (const int count : {0, 1, 16, 17, 40, 5000}) {
    const Json json = Json::parse(object_text(count));
    ASSERT_EQ(json.size(), static_cast<size_t>(count));
    int i = 0;
    for (const auto& [key, value] : json.items()) ASSERT_EQ(key, name(i++));
    for (int k = 0; k < count; ++k) ASSERT_EQ(json.at(name(k)), k);
    EXPECT_FALSE(json.contains("nothing"));
    EXPECT_FALSE(json.contains(name(count)));
  }
}

TEST(OrderedObject, RepeatedKeysHaveTheLastValueAndTheFirstPlace) {
  std::string text = object_text(100);
  text.back() = ',';
  const Json json = Json::parse(text + "\"" + name(3) + "\":-1}");
  EXPECT_EQ(json.size(), 100u);
  EXPECT_EQ(json.at(name(3)), -1);
  EXPECT_EQ(std::next(json.begin(), 3).key(), name(3));
}

TEST(OrderedObject, ErasingKeepsTheRestFindable) {
  for (const int count : {10, 17, 18, 200}) {
    Json json = Json::parse(object_text(count));
    EXPECT_EQ(json.erase(name(5)), 1u);
    EXPECT_EQ(json.erase(name(5)), 0u);
    json.erase(json.find(name(7)));
    json["new"] = "x";
    EXPECT_EQ(json.size(), static_cast<size_t>(count) - 1);
    for (int k = 0; k < count; ++k) EXPECT_EQ(json.contains(name(k)), k != 5 && k != 7) << k;
    EXPECT_EQ(json.at("new"), "x");
    EXPECT_EQ(std::prev(json.end()).key(), "new");
    json.clear();
    EXPECT_FALSE(json.contains(name(1)));
    json["a"] = 1;
    EXPECT_EQ(json.dump(), R"({"a":1})");
  }
}

TEST(OrderedObject, CopiesAndMovesAreWhole) {
  const Json json = Json::parse(object_text(50));
  Json copy = json, moved = std::move(copy);
  copy = moved;
  EXPECT_EQ(copy, json);
  moved["more"] = 1;
  EXPECT_EQ(copy, json) << "the copy is its own";
  EXPECT_NE(moved, json);
  moved.update(Json{{"more", 2}, {name(4), "four"}});
  EXPECT_EQ(moved.at("more"), 2);
  EXPECT_EQ(moved.at(name(4)), "four");
  const std::map<std::string, int> map = json.get<std::map<std::string, int>>();
  EXPECT_EQ(map.size(), 50u);
  EXPECT_EQ(Json(map).at(name(49)), 49);
  EXPECT_EQ(Json::parse(R"({"b":1,"a":2})"), Json::parse(R"({"b":1,"a":2})"));
  EXPECT_NE(Json::parse(R"({"b":1,"a":2})"), Json::parse(R"({"a":2,"b":1})")) << "the order counts";
}

/// The index of DeepSeek-V3 has 93,696 names.
TEST(OrderedObject, TimeGrowsWithTheNumberOfNames) {
  const std::string small = object_text(50'000), large = object_text(100'000);
  Json json;
  const double half = processor_seconds([&] { json = Json::parse(small); }, 3);
  const double whole = processor_seconds([&] { json = Json::parse(large); }, 3);
  EXPECT_LT(whole, 3 * half) << "2, plus caches; comparing a key with all earlier ones gives 4";
}

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

TEST(Error, PrintsWhatWhereAndHowToFix) {
  const UserError error("unknown key 'lerning_rate'", "run.yaml:3", "write 'learning_rate'");
  EXPECT_STREQ(error.what(), "error: unknown key 'lerning_rate'\n  where: run.yaml:3\n  fix:   write 'learning_rate'");
  EXPECT_EQ(error.code(), ExitCode::kUserInput);
}

TEST(Error, ShowsControlCharactersOfNamesAndCutsWhatIsLong) {
  const UserError error("'\x1b[2Jx\n  fix:   run this' appears twice", "a\rb", "\u202eabc");
  EXPECT_STREQ(error.what(),
               "error: '\\x1b[2Jx\\n  fix:   run this' appears twice\n  where: a\\x0db\n  fix:   \\u202eabc");
  const std::string cut = UserError("'" + std::string(1'000'000, 'x') + "' is not a number").what();
  EXPECT_LT(cut.size(), 5000u);
  EXPECT_TRUE(cut.starts_with("error: 'xxx") && cut.ends_with("xxx' is not a number")) << cut;
}

TEST(DidYouMean, FindsNearNamesOnly) {
  const std::vector<std::string> names = {"learning_rate", "warmup_steps", "seed"};
  EXPECT_EQ(did_you_mean("lerning_rate", names), " Did you mean 'learning_rate'?");
  EXPECT_EQ(did_you_mean("sede", names), " Did you mean 'seed'?");
  EXPECT_EQ(did_you_mean("banana", names), "");
  const std::string longest(3'000'000, 's');
  EXPECT_EQ(did_you_mean(longest, std::vector<std::string>(100, "t" + longest)), "") << "in no time";
}

TEST(JsonValue, IsCopiedComparedAndMovedAsItsValueIs) {
  JsonValue value = Json::parse(R"({"a": [1, 2], "b": null})");
  JsonValue copy = value;
  EXPECT_EQ(copy, value);
  copy["a"][0] = 7;
  EXPECT_EQ(value["a"][0], 1) << "a copy is not shared";
  EXPECT_NE(copy, value);
  const Json& read = value;
  EXPECT_EQ(read.dump(), R"({"a":[1,2],"b":null})");
  const JsonValue moved = std::move(value);
  EXPECT_EQ(moved->at("a").size(), 2u);
  value = std::move(copy);
  EXPECT_EQ(value.at("a")[0], 7);
  EXPECT_TRUE(value.contains("b"));
  EXPECT_EQ(value.size(), 2u);
}

TEST(JsonValue, IsNullUntilItIsGivenAValue) {
  JsonValue value;
  EXPECT_TRUE(value.is_null());
  EXPECT_EQ(value, Json(nullptr));
  EXPECT_EQ(value, JsonValue(nullptr));
  value["a"] = 1;
  EXPECT_EQ(value, (Json{{"a", 1}}));
  EXPECT_EQ((Json{{"of a struct", value}}).dump(), R"({"of a struct":{"a":1}})");
}

TEST(JsonValue, OfAnObjectOrAnArrayIsEmptyAtFirst) {
  JsonObject object;
  EXPECT_TRUE(object.is_object());
  EXPECT_TRUE(JsonArray()->is_array());
  EXPECT_TRUE(JsonArray().empty());
  object = Json{{"a", 1}};
  const JsonObject copy = object;
  EXPECT_EQ(copy, object);
  EXPECT_EQ(std::exchange(object, Json::object()), copy);
  EXPECT_EQ(object, JsonObject());
}

TEST(ReadJson, BareInfinityIsWhatTransformersWritesForIt) {
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("hone_json_" + std::to_string(getpid()));
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return read_json(path);
  };
  const Json limits =
      read(R"({"time_step_limit": [0.0, Infinity], "low": -Infinity, "x": NaN, "name": "a \"Infinity"})");
  EXPECT_EQ(limits["time_step_limit"][1], Json({{"__float__", "Infinity"}}));
  EXPECT_EQ(limits["low"], Json({{"__float__", "-Infinity"}}));
  EXPECT_EQ(limits["x"], Json({{"__float__", "NaN"}}));
  EXPECT_EQ(limits["name"], "a \"Infinity");
  EXPECT_TRUE(read(R"({"a": Infinite})").is_discarded());
  EXPECT_TRUE(read(R"({"a": Infinity)").is_discarded());
  EXPECT_TRUE(parse_json(R"({"a": Infinity})").is_discarded()) << "a row of data";
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace hone
