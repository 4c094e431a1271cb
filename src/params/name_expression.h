// Regular expressions over the names of modules, from configurations and adapters' files.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/pcre.h"

namespace hone {

/// The steps of matching that a list of expressions may take: names are short, so only expressions made to be slow come
/// near it. A step takes some 20 ns.
class MatchBudget {
 public:
  /// False once it is used up.
  bool spend(int64_t steps) { return left_.fetch_sub(steps) > steps; }

 private:
  std::atomic<int64_t> left_{1'000'000'000};
};

/// Syntax: PCRE2's, of bytes. Safe to match with from several threads.
class NameExpression {
 public:
  enum class Must {
    kBeginAnywhere,  ///< match a part of the name
    kMatchTheEnd,    ///< match the name, or its end from a dot on: PEFT's (.*\.)?(EXPRESSION)$, matched from the begin
  };
  /// `key` is named in errors. UserError if it does not compile, or is longer than 64 KB.
  NameExpression(const std::string& expression, Must must, std::string key,
                 std::shared_ptr<MatchBudget> budget = std::make_shared<MatchBudget>());

  /// UserError if that takes too many steps, or the budget is used up.
  bool matches(std::string_view name) const;

 private:
  /// A kMatchTheEnd expression without operators other than ".", as one byte per character, kAny for the dot: the fast
  /// path for a list of all modules of a model.
  static std::optional<std::vector<int16_t>> plain_bytes(std::string_view expression);
  static constexpr int16_t kAny = -1;

  bool ends_with_plain(std::string_view name) const;

  std::string expression_, key_;
  Must must_;
  std::shared_ptr<MatchBudget> budget_;
  std::optional<std::vector<int16_t>> plain_;
  std::unique_ptr<Pcre> code_;  // null if it is plain
};

}  // namespace hone
