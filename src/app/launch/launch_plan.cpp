#include "app/launch/launch_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace hone {

void check_launch_plan(const LaunchPlan& plan) {
  if (plan.command.empty()) {
    throw UserError("there is nothing to start", "hone launch", "end it with -- train run.yaml");
  }
  const std::vector<std::string> verbs = {"train", "eval"};
  if (std::find(verbs.begin(), verbs.end(), plan.command.front()) == verbs.end()) {
    throw UserError(fmt::format("'{}' does not run on several ranks.{}", plan.command.front(),
                                did_you_mean(plan.command.front(), verbs)),
                    "hone launch", "use train or eval after --");
  }
  if (plan.ranks_per_host < 1) throw UserError("each host needs a rank", "-n", "use 1 or more, one for each GPU");
  const int ports = std::max(1, plan.independent.count);
  if (plan.port < 1024 || plan.port + ports > 65535) {
    throw UserError(fmt::format("{} cannot be the port", plan.port), "--port", "use one from 1024 to 65000");
  }
  for (const std::string& variable : plan.environment) {
    const size_t name = variable.find('=');
    const bool valid = name != std::string::npos && name > 0 &&
                       std::all_of(variable.begin(), variable.begin() + static_cast<ptrdiff_t>(name), [](char c) {
                         return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
                       });
    if (!valid) throw UserError(fmt::format("'{}' is not NAME=VALUE", variable), "--env", "e.g. NCCL_DEBUG=INFO");
  }
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kHarmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kHarmless) == std::string_view::npos) return std::string(text);
  std::string word = "'";
  for (const char c : text) c == '\'' ? word += "'\\''" : word += c;
  return word + "'";
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

std::string command_line(const LaunchPlan& plan) { return shell_word(plan.program) + " " + shell_words(plan.command); }

std::vector<std::string> independence_warning(int models) {
  return {fmt::format("These are {} independent models: model i learns from shard i alone, 1/{} of the data, and none",
                      models, models),
          "is better for the others. One model that learns from all of the data: leave --independent out."};
}

}  // namespace hone
