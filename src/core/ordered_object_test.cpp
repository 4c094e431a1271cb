#include "core/ordered_object.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "core/json.h"

namespace hone {
namespace {

std::string name(int i) { return "model.layers." + std::to_string(i % 61) + ".mlp.experts." + std::to_string(i / 61); }

std::string object_text(int names) {
  std::string text = "{";
  for (int i = 0; i < names; ++i) text += (i ? ",\"" : "\"") + name(i) + "\":" + std::to_string(i);
  return text + "}";
}

/// Seconds of the fastest of three.
template <class Work>
double seconds(const Work& work) {
  double fastest = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return fastest;
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
  const double half = seconds([&] { json = Json::parse(small); }), whole = seconds([&] { json = Json::parse(large); });
  // 2 and what caches and a busy machine do; comparing a key with all before it gives 4.
  EXPECT_LT(whole, 3 * half);
  EXPECT_LT(whole, 2.0);
}

}  // namespace
}  // namespace hone
