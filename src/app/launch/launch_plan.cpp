#include "app/launch/launch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "session/device_facts.h"

namespace hone {

void check_ranks_command(const std::vector<std::string>& command) {
  if (command.empty()) {
    throw UserError("there is nothing to start", "hone launch",
                    "end it with a verb: hone launch -n 2 -- train run.yaml");
  }
  const std::vector<std::string> verbs = {"train", "verify", "bench"};
  const std::string& verb = command.front();
  if (std::find(verbs.begin(), verbs.end(), verb) != verbs.end()) return;
  throw UserError(fmt::format("'{}' does not run on several ranks.{}", verb, did_you_mean(verb, verbs)), "hone launch",
                  fmt::format("{} do: hone launch -n 2 -- train run.yaml; other verbs run alone: hone {} …",
                              fmt::join(verbs, ", "), verb));
}

RankDevice rank_device_named(const std::string& name) {
  check_device_name(name, "--device");
  if (name == "auto") return RankDevice::kAuto;
  if (name.starts_with("cuda:")) {
    throw UserError(fmt::format("{} is one GPU, but each rank takes one of its own", name), "--device",
                    "use cuda; CUDA_VISIBLE_DEVICES says which GPUs the ranks share out");
  }
  return name == "cpu" ? RankDevice::kCpu : RankDevice::kCuda;
}

std::vector<std::pair<std::string, std::string>> cpu_rank_variables() { return {{"CUDA_VISIBLE_DEVICES", "-1"}}; }

void check_launch_plan(const LaunchPlan& plan) {
  check_ranks_command(plan.command);
  if (plan.independent.count > 0 && plan.command.front() != "train") {
    throw UserError(fmt::format("'{}' makes no models", plan.command.front()), "--independent", "use train after --");
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
    if (variable.starts_with("HONE_RUN_SECRET=")) {
      throw UserError("the run's secret would stand in a script and on command lines", "--env",
                      "leave it out: each run gets one of its own; or export HONE_RUN_SECRET before hone launch");
    }
  }
}

std::string secret_lines() {
  return R"sh(if [ -n "${HONE_RUN_SECRET_FILE:-}" ]; then HONE_RUN_SECRET=$(cat "$HONE_RUN_SECRET_FILE") || exit 2; fi
[ -n "${HONE_RUN_SECRET:-}" ] || HONE_RUN_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
)sh";
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
