#include "app/statement.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/config_value.h"
#include "core/error.h"

namespace hone {
namespace {

[[noreturn]] void refuse_two(const Statement& first, const Statement& second) {
  throw UserError(fmt::format("{} is stated twice with different values: '{}' ({}) and '{}' ({})", first.key->name,
                              first.said, first.where, second.said, second.where),
                  second.where, "keep one of them");
}

/// Mappings add up; a member stated twice must agree, or the command line wins.
Statement merged(const std::vector<Statement>& all) {
  Statement result = all.front();
  for (const Statement& other : all) {
    for (const auto& [name, value] : other.value.items()) {
      const bool differs = result.value.contains(name) && result.value[name] != value;
      if (differs && !other.from_command_line) refuse_two(result, other);
      result.value[name] = value;
    }
  }
  return result;
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
  return Statement{key, *parsed, meant.emphasis, said(written, value), shown(meant.value), value.where, false};
}

Statement chosen_statement(const std::vector<Statement>& all) {
  if (all.front().key->type == KeyType::kMapping) return merged(all);
  if (all.back().from_command_line) return all.back();
  const auto strongest = std::max_element(
      all.begin(), all.end(), [](const Statement& a, const Statement& b) { return a.emphasis < b.emphasis; });
  for (const Statement& other : all) {
    if (other.emphasis == strongest->emphasis && other.value != strongest->value) refuse_two(*strongest, other);
  }
  return *strongest;
}

}  // namespace hone
