#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/store_testing.h"
#include "weights/adapter_keys.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kFixture = std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/peft_keys.json";

std::string error_of(const Json& config) {
  return testing::user_error([&] { check_adapter_keys(config, "adapter_config.json"); });
}

/// Values that PEFT, or another program, could write.
const std::vector<Json>& some_values() {
  static const std::vector<Json> values = {true, 7, 0.5, "text", Json::array({1, 2}), Json{{"a", 1}}};
  return values;
}

TEST(AdapterKeys, EveryKeyOfPeftIsInTheTable) {
  const Json keys = read_json(kFixture)["keys"];
  ASSERT_GT(keys.size(), 40u);
  for (const auto& [name, value] : keys.items()) {
    const bool known = std::any_of(adapter_keys().begin(), adapter_keys().end(),
                                   [&n = name](const AdapterKey& key) { return key.name == n; });
    EXPECT_TRUE(known) << name;
  }
  for (const AdapterKey& key : adapter_keys()) EXPECT_TRUE(keys.contains(std::string(key.name))) << key.name;
  EXPECT_EQ(error_of(keys), "") << "PEFT's defaults";
}

TEST(AdapterKeys, AKeyIsReadOrChangesNothingOrIsRefusedByName) {
  const Json defaults = read_json(kFixture)["keys"];
  for (const AdapterKey& key : adapter_keys()) {
    const std::string name(key.name);
    if (key.use == AdapterKey::Use::kRead) continue;  // tested where it is read
    for (const Json& value : some_values()) {
      SCOPED_TRACE(name + ": " + value.dump());
      Json config = defaults;
      config[name] = value;
      if (key.use == AdapterKey::Use::kNeutral) {
        EXPECT_EQ(error_of(config), "");
      } else {
        EXPECT_THAT(error_of(config), HasSubstr("the adapter uses " + name + ": "));
      }
    }
  }
}

TEST(AdapterKeys, AKeyThatIsNotKnownIsRefusedIfItSaysSomething) {
  for (const Json& value : some_values()) {
    EXPECT_THAT(error_of({{"use_of_tomorrow", value}}), HasSubstr("the adapter uses use_of_tomorrow: ")) << value;
  }
  for (const Json& value : {Json(nullptr), Json(false), Json(""), Json::array(), Json::object()}) {
    EXPECT_EQ(error_of({{"use_of_tomorrow", value}}), "") << value;
  }
}

TEST(AdapterKeys, AValueOfAnotherTypeIsRefused) {
  EXPECT_THAT(error_of({{"use_rslora", "yes"}}), HasSubstr("use_rslora of the adapter is \"yes\", not true or false"));
  EXPECT_THAT(error_of({{"use_dora", 1}}), HasSubstr("use_dora"));
  EXPECT_THAT(error_of({{"lora_alpha", "16"}}), HasSubstr("not a number"));
  EXPECT_THAT(error_of({{"target_modules", 7}}), HasSubstr("not a text or a list of texts"));
  EXPECT_THAT(error_of({{"modules_to_save", Json::array({Json::array({"a"})})}}), HasSubstr("modules_to_save"));
  EXPECT_THAT(error_of({{"peft_type", "IA3"}}), HasSubstr("peft_type: \"IA3\""));
}

/// PEFT changes the base model's weights each time that it loads an adapter with some of these.
TEST(AdapterKeys, StartsThatChangeTheBaseAreRefused) {
  const auto start = [](const Json& value) { return Json{{"init_lora_weights", value}}; };
  for (const Json& value : {Json(true), Json(false), Json(nullptr), Json("gaussian"), Json("Gaussian"), Json("eva"),
                            Json("orthogonal"), Json("mica")}) {
    EXPECT_EQ(error_of(start(value)), "") << value;
    EXPECT_THAT(check_adapter_keys(start(value), ""), IsEmpty()) << value;
  }
  for (const char* value : {"pissa", "pissa_niter_16", "PISSA", "olora", "OLoRA", "corda", "loftq"}) {
    EXPECT_THAT(error_of(start(value)), HasSubstr(std::string("the adapter uses init_lora_weights: \"") + value));
    EXPECT_THAT(error_of(start(value)), HasSubstr("path_initial_model_for_weight_conversion")) << value;
  }
  for (const Json& value : {Json("of_tomorrow"), Json(1), Json::array({"pissa"})}) {
    EXPECT_THAT(error_of(start(value)), HasSubstr("init_lora_weights")) << value;
  }
  EXPECT_THAT(check_adapter_keys(start("lora_ga"), ""), ::testing::ElementsAre(HasSubstr("lora_ga")));
}

}  // namespace
}  // namespace hone
