#include "text/token_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/json.h"

namespace hone {

TokenChoice TokenChoice::parse(const Json& special_tokens, std::vector<std::string> eot_tokens,
                               const std::string& where) {
  TokenChoice choice;
  choice.eot = std::move(eot_tokens);
  const std::array<std::pair<std::string_view, std::optional<std::string>*>, 4> roles = {
      {{"bos_token", &choice.bos}, {"eos_token", &choice.eos}, {"pad_token", &choice.pad}, {"unk_token", &choice.unk}}};
  for (const auto& [name, value] : special_tokens.items()) {
    std::optional<std::string>* role = nullptr;
    for (const auto& [known, member] : roles) {
      if (known == name) role = member;
    }
    if (!role) {
      throw UserError(fmt::format("special_tokens has no '{}'", name), where,
                      "name bos_token, eos_token, pad_token or unk_token; tokens that end a turn are eot_tokens");
    }
    if (value.is_null()) continue;
    if (!value.is_string() || value == "")
      throw UserError(fmt::format("special_tokens.{} is not a token", name), where);
    *role = value.get<std::string>();
  }
  return choice;
}

Json TokenChoice::to_json() const {
  Json json = Json::object();
  const auto add = [&](const char* name, const std::optional<std::string>& token) {
    if (token) json[name] = *token;
  };
  add("bos_token", bos);
  add("eos_token", eos);
  add("pad_token", pad);
  add("unk_token", unk);
  if (!eot.empty()) json["eot_tokens"] = eot;
  return json;
}

TokenChoice TokenChoice::from_json(Json json, const std::string& where) {
  std::vector<std::string> eot;
  const Json listed = json.value("eot_tokens", Json::array());
  const bool texts =
      listed.is_array() && std::all_of(listed.begin(), listed.end(), [](const Json& one) { return one.is_string(); });
  if (!texts) throw UserError("eot_tokens is not a list of tokens", where);
  for (const Json& token : listed) eot.push_back(token);
  json.erase("eot_tokens");
  return parse(json, std::move(eot), where);
}

}  // namespace hone
