#include "params/name_expression.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace hone {

namespace {

constexpr size_t kLongest = 64 * 1024;
constexpr uint32_t kFirstSteps = 64, kMostSteps = 1'000'000;  // per name

}  // namespace

NameExpression::NameExpression(const std::string& expression, Must must, std::string key,
                               std::shared_ptr<MatchBudget> budget)
    : expression_(expression), key_(std::move(key)), must_(must), budget_(std::move(budget)) {
  if (expression_.size() > kLongest) {
    throw UserError(fmt::format("a regular expression has {} bytes, {} are allowed", expression_.size(), kLongest),
                    key_, "write several shorter ones");
  }
  if (must_ == Must::kMatchTheEnd) plain_ = plain_bytes(expression_);
  if (plain_) return;
  try {
    const bool end = must_ == Must::kMatchTheEnd;
    code_ = std::make_unique<Pcre>(end ? "(.*\\.)?(" + expression_ + ")$" : expression_, end ? PCRE2_ANCHORED : 0u,
                                   Pcre::Engine::kInterpreter);
  } catch (const PcreError& error) {
    throw UserError(fmt::format("'{}' is not a regular expression: {}", expression_, error.what()), key_,
                    "check brackets and backslashes (Perl's syntax)");
  }
}

std::optional<std::vector<int16_t>> NameExpression::plain_bytes(std::string_view expression) {
  std::vector<int16_t> bytes;
  for (size_t i = 0; i < expression.size(); ++i) {
    char c = expression[i];
    const bool escaped = c == '\\' && i + 1 < expression.size();
    if (escaped) c = expression[++i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    const bool operation = c < ' ' || c > '~' || std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos;
    if (c == '.' && !escaped) {
      bytes.push_back(kAny);
    } else if (escaped ? letter || c < ' ' || c > '~' : operation) {
      return std::nullopt;
    } else {
      bytes.push_back(static_cast<int16_t>(c));
    }
  }
  return bytes;
}

bool NameExpression::ends_with_plain(std::string_view name) const {
  if (name.size() < plain_->size()) return false;
  const size_t before = name.size() - plain_->size();
  if (before > 0 && name[before - 1] != '.') return false;
  // From the end: names of other layers and modules differ there.
  for (size_t i = plain_->size(); i-- > 0;) {
    const int16_t byte = (*plain_)[i];
    if (byte != kAny && byte != name[before + i]) return false;
  }
  return true;
}

bool NameExpression::matches(std::string_view name) const {
  if (plain_) return ends_with_plain(name);
  // PCRE2 does not say how many steps a match took, only whether it kept within a limit: so the limit starts small and
  // grows.
  std::string problem;
  for (uint32_t steps = kFirstSteps; problem.empty(); steps = std::min(steps * 8, kMostSteps)) {
    try {
      if (budget_->spend(steps)) return PcreMatcher(*code_, steps).find(name, 0).has_value();
      problem = "the patterns take too many steps";
    } catch (const PcreStepsError& error) {
      if (steps == kMostSteps) problem = error.what();
    } catch (const PcreError& error) {
      problem = error.what();
    }
  }
  throw UserError(fmt::format("'{}' cannot be matched with '{}': {}", expression_, name, problem), key_,
                  "write the pattern without repetitions of repetitions");
}

}  // namespace hone
