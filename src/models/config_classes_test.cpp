// Reads config.json as transformers' config classes do: every field of every class, missing, null and with another
// value (tests/fixtures/config_classes.json, which tools/make_config_fixture.py makes).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "models/registry.h"

namespace hone {
namespace {

const Json& classes() {
  static const Json fixture = read_json(std::string(HONE_SOURCE_DIR) + "/tests/fixtures/config_classes.json");
  return fixture.at("classes");
}

/// What comes of a config.json: a decoder, or a refusal.
struct Reading {
  std::optional<DecoderConfig> decoder = {};
  std::string refusal = {};
  std::vector<std::string> unread = {};
};

Reading reading_of(const Json& json) {
  const HfConfig config(json, "config.json");
  Reading reading;
  try {
    reading.decoder = read_decoder_config(config);
    reading.unread = config.unread();
  } catch (const UserError& error) {
    reading.refusal = error.message() + " " + error.fix();
  }
  return reading;
}

bool refuses(const Reading& reading, const std::string& field) {
  const std::string name = field == "rope_parameters" ? "rope" : field;
  return reading.refusal.find(name) != std::string::npos;
}

void set_all(Json& json, const Json& values) {
  for (const auto& [name, value] : values.items()) json[name] = value;
}

class ConfigClasses : public ::testing::TestWithParam<std::string> {
 protected:
  const Json& described() const { return classes().at(GetParam()); }

  /// The config.json of a case, without the change that it is about.
  Json before(const Json& of) const {
    Json json = described().at("config");
    if (of.contains("beside")) set_all(json, of["beside"]);
    return json;
  }
  Json changed(const Json& of) const {
    Json json = before(of);
    if (of.contains("erase")) {
      for (const Json& name : of["erase"]) json.erase(name.get<std::string>());
    }
    if (of.contains("set")) set_all(json, of["set"]);
    return json;
  }
  /// The same as transformers has it after reading.
  Json resolved(const Json& of) const {
    Json json = changed(of);
    if (of.contains("gone")) {
      for (const Json& name : of["gone"]) json.erase(name.get<std::string>());
    }
    set_all(json, of["resolved"]);
    return json;
  }
};

TEST_P(ConfigClasses, WhatIsMissingNullOrInAnotherFormMeansWhatTransformersMakesOfIt) {
  for (const Json& of : described().at("cases")) {
    const auto field = of["field"].get<std::string>();
    const Reading ours = reading_of(changed(of)), theirs = reading_of(resolved(of));
    if (refuses(ours, field) || (!ours.decoder && !reading_of(before(of)).decoder)) continue;
    ASSERT_TRUE(ours.decoder) << of << "\n" << ours.refusal;
    ASSERT_TRUE(theirs.decoder) << of << "\n" << theirs.refusal;
    EXPECT_TRUE(*ours.decoder == *theirs.decoder) << of;
  }
}

TEST_P(ConfigClasses, NoFieldIsIgnoredWithoutAWord) {
  for (const Json& of : described().at("cases")) {
    if (of["kind"] != "other") continue;
    const auto field = of["field"].get<std::string>();
    const Reading plain = reading_of(before(of)), with_other = reading_of(changed(of));
    if (!plain.decoder || refuses(with_other, field)) continue;
    ASSERT_TRUE(with_other.decoder) << of << "\n" << with_other.refusal;
    const bool named = std::count(with_other.unread.begin(), with_other.unread.end(), field) > 0;
    const bool overwritten = of["resolved"].contains(field);  // by the class itself
    EXPECT_TRUE(*plain.decoder != *with_other.decoder || named || overwritten || describes_no_computation(field)) << of;
  }
}

TEST_P(ConfigClasses, ItsDefaultsRaiseNoAlarm) {
  const Reading reading = reading_of(described().at("config"));
  EXPECT_TRUE(reading.decoder) << reading.refusal;
  EXPECT_THAT(reading.unread, ::testing::IsEmpty());
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ConfigClasses, ::testing::ValuesIn(known_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hone
