// The rules of the tables against the schema: what Hone has may not be called missing or without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "app/config/schema.h"
#include "app/convert_config/tool.h"

namespace hone {
namespace {

/// Rules about a name that Hone has with another meaning, and why each stands.
const std::map<std::string, std::string>& reasons() {
  static const std::map<std::string, std::string> all = {
      {"axolotl: datasets.temperature", "the temperature of a distillation's teacher"},
      {"llama-factory: tokenized_path", "a data set of its own form, and no cache of Hone's"},
      {"llama-factory-v1: quant_config.name", "the name of a method"},
      {"llama-factory-v1: peft_config.export_dir", "where a merge writes, and no export after training"},
      {"llama-factory-v1: max_new_tokens", "the length of its sampler's answers"},
      {"trl: dataset_text_field", "its default is Hone's, and other columns need the entry of datasets"},
      {"transformers: padding_free", "it pads less, and packs nothing"},
      {"mixtral-guide: moe.top_k", "the experts of a token, and no sampling"},
      {"mixtral-guide: inference.max_length", "the length of answers"},
      {"fms: padding_free", "it pads less, and packs nothing"},
      {"fms: dataset_text_field", "its default is Hone's, and other columns need the entry of datasets"}};
  return all;
}

TEST(ToolRules, HideNoKeyOfHone) {
  using OfRule = ToolRule::Kind;
  std::map<std::string, std::string> unused = reasons();
  for (const Tool& tool : tools()) {
    for (const ToolRule& rule : tool.rules) {
      const bool hides =
          rule.kind == OfRule::kNoEffect || rule.kind == OfRule::kMissing || rule.kind == OfRule::kRefused;
      const std::string name = rule.name.substr(rule.name.rfind('.') + 1);
      const KeySpec* key = hides ? find_key(schema(), "", name).key : nullptr;
      if (!key || key->status != KeyStatus::kSupported) continue;
      const std::string said = tool.name + ": " + rule.name;
      unused.erase(said);
      EXPECT_TRUE(reasons().contains(said)) << said << " is " << key->name << " in Hone, but: " << rule.why;
    }
  }
  for (const auto& [said, why] : unused) ADD_FAILURE() << said << " hides nothing any more: " << why;
}

}  // namespace
}  // namespace hone
