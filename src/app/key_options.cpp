#include "app/key_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "config/schema.h"
#include "core/text/json.h"

namespace hone {

namespace {

/// The option's names: its own first, then the key's.
std::string option_names(const VerbKey& key) {
  std::string own = std::string("--") + key.key;
  std::replace(own.begin(), own.end(), '_', '-');
  return key.option == nullptr ? own : fmt::format("{},{}", key.option, own);
}

std::string usual_value(const KeySpec& key, const UsualValues& usual) {
  const auto found =
      std::find_if(usual.begin(), usual.end(), [&](const auto& entry) { return entry.first == key.name; });
  if (found != usual.end()) return found->second;
  const Json& value = *key.default_value;
  return value.is_null() || value.is_structured() ? "" : value.is_string() ? value.get<std::string>() : value.dump();
}

/// Adds the option for a key that is not a switch.
void add_valued(CLI::App* verb, std::vector<std::string>& stated, const KeySpec& key, const std::string& names) {
  const bool list = key.type == KeyType::kStringList;
  const auto state = [&stated, &key, list](const std::vector<std::string>& words) {
    stated.push_back(list ? fmt::format("{}=[{}]", key.name, fmt::join(words, ", "))
                          : fmt::format("{}={}", key.name, words.back()));
    return true;
  };
  CLI::Option* option = verb->add_option(names, state, key.help)->type_size(1);
  if (list) {
    option->delimiter(',')->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  } else {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  if (!key.choices.empty()) option->type_name(fmt::format("{}", fmt::join(key.choices, list ? "," : "|")));
  if (key.type == KeyType::kInteger) option->type_name("INT");
}

}  // namespace

void add_keys(CLI::App* verb, std::vector<std::string>& stated, const UsualValues& usual,
              std::initializer_list<VerbKey> keys) {
  for (const VerbKey& taken : keys) {
    const KeySpec& key = key_spec(taken.key);
    const std::string names = option_names(taken);
    if (key.type == KeyType::kBool) {
      const auto state = [&stated, &key](int64_t count) {
        stated.push_back(fmt::format("{}={}", key.name, count > 0));
      };
      verb->add_flag_function(names, state, key.help);
      continue;
    }
    add_valued(verb, stated, key, names);
    verb->get_option(names.substr(0, names.find(',')))->default_str(usual_value(key, usual));
  }
}

ResolvedConfig resolve_keys(const UsualValues& usual, const std::vector<std::string>& stated, RanksOfRun ranks,
                            RuleUse use) {
  ConfigNode defaults = ConfigNode::empty(ConfigNode::Kind::kMapping, "");
  for (const auto& [name, value] : usual) {
    if (!value.empty()) defaults.put(name, parse_override_value(value, name));
  }
  return resolve_config(defaults, parse_overrides(stated), ranks, use);
}

}  // namespace hone
