#include "library/verb_words.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "app/cli.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {

namespace {

/// The value of an option; a text without quotes.
std::string option_value(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string override_of(const std::string& key, const Json& value) { return key + "=" + value.dump(); }

void add_option(std::vector<std::string>& words, const std::string& name, const CLI::Option& option,
                const Json& value) {
  if (value.is_null()) return;
  if (option.get_items_expected_max() == 0) {  // a flag
    if (!value.is_boolean()) throw UserError(fmt::format("'{}' is true or false", name), "settings: " + name);
    if (value.get<bool>()) words.push_back(name);
    return;
  }
  for (const Json& item : value.is_array() ? value : Json::array({value})) {
    words.push_back(name + "=" + option_value(item));
  }
}

}  // namespace

std::vector<std::string> overrides_of(const JsonValue& settings) {
  std::vector<std::string> words;
  for (const auto& [key, value] : settings->items()) words.push_back(override_of(key, value));
  return words;
}

std::vector<std::string> verb_words(const std::string& verb, const JsonValue& settings) {
  CLI::App app;
  Action action;
  add_verbs(app, action, {});
  const CLI::App* options = app.get_subcommand(verb);
  std::vector<std::string> words = {verb};
  if (settings->contains("config")) words.push_back(option_value((*settings)["config"]));
  for (const auto& [key, value] : settings->items()) {
    if (key == "config") continue;
    std::string name = "--" + key;
    std::replace(name.begin(), name.end(), '_', '-');
    if (const CLI::Option* option = options->get_option_no_throw(name)) {
      add_option(words, name, *option, value);
    } else if (takes_overrides(verb)) {
      words.push_back(override_of(key, value));
    } else {
      std::vector<std::string> names;
      for (const CLI::Option* known : options->get_options()) {
        for (std::string known_name : known->get_lnames()) {
          std::replace(known_name.begin(), known_name.end(), '-', '_');
          names.push_back(known_name);
        }
      }
      throw UserError(fmt::format("'{}' is not a setting of hone {}.{}", key, verb, did_you_mean(key, names)),
                      "settings", fmt::format("hone {} --help lists them as options", verb));
    }
  }
  return words;
}

}  // namespace hone
