// The rules of the tables against the schema: what Hone has may not be called missing or without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "config/schema.h"
#include "config/tools/tool.h"

namespace hone {
namespace {

/// Rules about a name that Hone has with another meaning, and why each stands.
const std::map<std::string, std::string>& reasons() {
  static const std::map<std::string, std::string> all = {
      {"axolotl: datasets.roles_to_train", "the turns of one entry, where train_on is for all data sets"},
      {"axolotl: datasets.temperature", "the temperature of a distillation's teacher"},
      {"llama-factory: tokenized_path", "a data set of its own form, and no cache of Hone's"},
      {"llama-factory-v1: quant_config.name", "the name of a method"},
      {"llama-factory-v1: optim_config.lr", "learning_rate has precedence there"},
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

/// Whether a rule says of what it matches that it is missing or without effect.
bool hides(const ToolRule& rule) {
  return rule.kind == ToolRule::Kind::kNoEffect || rule.kind == ToolRule::Kind::kMissing ||
         rule.kind == ToolRule::Kind::kRefused;
}

TEST(ToolRules, HideNoKeyOfHone) {
  std::map<std::string, std::string> unused = reasons();
  for (const Tool& tool : tools()) {
    for (const ToolRule& rule : tool.rules) {
      const std::string name = rule.name.substr(rule.name.rfind('.') + 1);
      const KeySpec* key = hides(rule) ? find_key(schema(), "", name).key : nullptr;
      if (!key || key->status != KeyStatus::kSupported) continue;
      const std::string said = tool.name + ": " + rule.name;
      unused.erase(said);
      EXPECT_TRUE(reasons().contains(said)) << said << " is " << key->name << " in Hone, but: " << rule.why;
    }
  }
  for (const auto& [said, why] : unused) ADD_FAILURE() << said << " hides nothing any more: " << why;
}

/// Names of Hone's that a rule with * matches, and why each is another thing there.
const std::map<std::string, std::string>& open_reasons() {
  static const std::map<std::string, std::string> all = {
      {"llama-factory: export_dir", "where an export writes, which a training does not read"},
      {"llama-factory-v1: sample_packing", "no key of that trainer"},
      {"fsdp: fsdp_config", "its file holds no second one"}};
  return all;
}

TEST(ToolRules, WithAStarHideNoKeyOfHone) {
  std::map<std::string, std::string> unused = open_reasons();
  for (const Tool& tool : tools()) {
    for (const ToolRule& rule : tool.rules) {
      if (!rule.name.ends_with('*') || rule.name == "*" || !hides(rule)) continue;
      const size_t dot = rule.name.rfind('.');
      // Members of a mapping of the tool's own have its names; those of a section have everybody's, where a refusal
      // hides nothing.
      const std::string inside = dot == std::string::npos ? "" : rule.name.substr(0, dot);
      const bool section = is_section(inside) && !tool.base.empty() && rule.kind != ToolRule::Kind::kRefused;
      if (!inside.empty() && !section) continue;
      for (const std::string& name : writable_names(schema())) {
        const std::string path = inside.empty() ? name : inside + "." + name;
        if (find_rule(tool, path) != &rule) continue;
        const KeySpec* key = find_key(schema(), inside, name).key;
        if (!key || key->status != KeyStatus::kSupported) continue;
        const std::string said = tool.name + ": " + path;
        unused.erase(said);
        EXPECT_TRUE(open_reasons().contains(said))
            << said << " is " << key->name << " in Hone, but by " << rule.name << ": " << rule.why;
      }
    }
  }
  for (const auto& [said, why] : unused) ADD_FAILURE() << said << " hides nothing any more: " << why;
}

}  // namespace
}  // namespace hone
