#include "app/config/statement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/config/config_value.h"
#include "core/error.h"

namespace hone {
namespace {

[[noreturn]] void refuse_two(const Statement& first, const Statement& second) {
  throw UserError(fmt::format("{} is stated twice with different values: '{}' ({}) and '{}' ({})", first.key->name,
                              first.said, first.where, second.said, second.where),
                  second.where, "keep one of them");
}

/// Whether `later` is to count although `earlier` says otherwise.
bool replaces(const Statement& later, const Statement& earlier) {
  return later.from_command_line && (!earlier.from_command_line || later.written == earlier.written);
}

/// Mappings add up; a member stated twice must agree, or the later one replaces the other.
Statement merged(const std::vector<Statement>& all) {
  Statement result = all.front();
  std::map<std::string, const Statement*> by;
  for (const Statement& other : all) {
    for (const auto& [name, value] : other.value.items()) {
      const Statement*& last = by[name];
      const bool differs = last && result.value[name] != value;
      if (differs && !replaces(other, *last)) refuse_two(*last, other);
      result.value[name] = value;
      last = &other;
    }
  }
  return result;
}

/// The statements of the command line, where there are any: the last of each name.
std::vector<Statement> that_count(const std::vector<Statement>& all) {
  std::vector<Statement> kept;
  for (const Statement& statement : all) {
    std::erase_if(kept, [&](const Statement& earlier) { return replaces(statement, earlier); });
    if (statement.from_command_line || kept.empty() || !kept.back().from_command_line) kept.push_back(statement);
  }
  return kept;
}

/// The items of all, each once.
Statement united(const std::vector<Statement>& all) {
  Statement whole = all.front();
  for (const Statement& other : all) {
    for (const Json& item : other.value) {
      if (std::find(whole.value.begin(), whole.value.end(), item) == whole.value.end()) whole.value.push_back(item);
    }
  }
  return whole;
}

}  // namespace

std::optional<Statement> read_statement(const FoundKey& found, const std::string& written, const ConfigNode& value) {
  const KeySpec* key = found.key;
  if (key->status == KeyStatus::kNoEffect) return std::nullopt;
  Rewritten meant{value};
  if (found.alias && found.alias->rewrite) meant = found.alias->rewrite(value);
  if (meant.emphasis == Emphasis::kNothing) return std::nullopt;
  if (key->status == KeyStatus::kLater) {
    check_later(*key, meant.value, said(written, value));
    return std::nullopt;
  }
  if (key->redirect && meant.value.kind == ConfigNode::Kind::kScalar) {
    const std::string other = key->redirect(meant.value);
    if (!other.empty()) key = &key_spec(other);
  }
  if (key->rewrite) meant.value = key->rewrite(meant.value).value;
  const std::optional<Json> parsed = parse_value(*key, meant.value, written, value);
  if (!parsed) return std::nullopt;
  if (parsed->is_null()) meant.emphasis = Emphasis::kWeak;  // max_steps: -1 yields to train_steps: 100
  return Statement{key, *parsed, meant.emphasis, said(written, value), shown(meant.value), value.where, written, false};
}

Statement chosen_statement(const std::vector<Statement>& stated) {
  if (stated.front().key->type == KeyType::kMapping) return merged(stated);
  const std::vector<Statement> all = that_count(stated);
  if (stated.front().key->adds_up) return united(all);
  const auto strongest = std::max_element(
      all.begin(), all.end(), [](const Statement& a, const Statement& b) { return a.emphasis < b.emphasis; });
  for (const Statement& other : all) {
    if (other.emphasis == strongest->emphasis && other.value != strongest->value) refuse_two(*strongest, other);
  }
  return *strongest;
}

}  // namespace hone
