#include "app/bench/grid/grid_scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/text/shell_words.h"

namespace hone {
namespace {

/// A positive integer, as the reader of the file has checked for the grid's own keys; nothing for other text.
std::optional<int64_t> positive(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? std::optional(value) : std::nullopt;
}

/// Sets micro_batches from global_batch, if that is stated.
void divide_global_batch(GridSettings& settings, const std::vector<GridKey>& keys, const std::string& where) {
  const std::string* global = settings.find(kGlobalBatchKey);
  if (!global) return;
  if (settings.find("micro_batches")) {
    throw UserError("a scenario states both global_batch and micro_batches", where,
                    "leave out one: a step has ranks × micro_batches × batch documents");
  }
  const std::string batch = value_of(settings, "batch", keys), ranks = value_of(settings, kRanksKey, keys);
  const std::optional<int64_t> documents = positive(*global), each = positive(batch), parts = positive(ranks);
  if (!documents || !each || !parts || *documents % *each != 0 || *documents / *each % *parts != 0) {
    throw UserError(
        fmt::format("global_batch {} is not a multiple of batch {} times ranks {}", *global, batch, ranks), where,
        fmt::format("change one of them, or leave it out: exclude: [{{batch: {}, ranks: {}}}]", batch, ranks));
  }
  settings.put("micro_batches", std::to_string(*documents / *each / *parts));
}

void add_option(std::vector<std::string>& command, const GridKey& key, const std::string& value) {
  if (key.is_switch) {
    if (value == "true") command.push_back(key.flag);
  } else if (value.starts_with('-')) {
    command.push_back(key.flag + "=" + value);
  } else {
    command.insert(command.end(), {key.flag, value});
  }
}

std::vector<std::string> command_of(const GridSettings& settings, const std::vector<GridKey>& keys) {
  std::vector<std::string> command;
  const std::string ranks = value_of(settings, kRanksKey, keys);
  if (ranks != "1") {
    command = {"launch", "-n", ranks};
    if (const std::string* device = settings.find("device")) command.insert(command.end(), {"--device", *device});
    command.push_back("--");
  }
  command.insert(command.end(), {"bench", "step"});
  for (const GridKey& key : keys) {
    const std::string* value = key.flag.empty() ? nullptr : settings.find(key.name);
    if (value) add_option(command, key, *value);
  }
  command.insert(command.end(), {"--json", "-"});
  return command;
}

}  // namespace

const std::string* GridSettings::find(std::string_view name) const {
  const auto found = std::ranges::find(settings_, name, &Setting::first);
  return found == settings_.end() ? nullptr : &found->second;
}

void GridSettings::put(const std::string& name, const std::optional<std::string>& value) {
  const auto found = std::ranges::find(settings_, name, &Setting::first);
  if (found == settings_.end()) {
    if (value) settings_.emplace_back(name, *value);
  } else if (value) {
    found->second = *value;
  } else {
    settings_.erase(found);
  }
}

std::string GridScenario::command_line() const { return "hone " + shell_words(command); }

GridScenario make_scenario(GridSettings settings, const std::vector<GridKey>& keys, const std::string& where) {
  if (!settings.find("model")) {
    throw UserError("a scenario has no model", where, "state model in defaults, matrix or the entry of include");
  }
  for (const GridKey& key : keys) {
    if (!has_effect(settings, key.name, keys)) settings.put(key.name, std::nullopt);
  }
  divide_global_batch(settings, keys, where);
  std::vector<std::string> command = command_of(settings, keys);
  return {std::move(settings), std::move(command)};
}

bool has_effect(const GridSettings& settings, const std::string& name, const std::vector<GridKey>& keys) {
  const std::string mode = value_of(settings, "mode", keys);
  if (name == "zero_stage" || name == "shard_size" || name == "expert_parallel_size") {
    return value_of(settings, kRanksKey, keys) != "1";
  }
  if (name == "lora_r") return mode != "full";
  if (name == "expert_lora") return mode != "full" && mode != "lora";
  return true;
}

std::string value_of(const GridSettings& settings, const std::string& name, const std::vector<GridKey>& keys) {
  if (const std::string* stated = settings.find(name)) return *stated;
  const GridKey* key = find_grid_key(keys, name);
  return key ? key->usual : "";
}

}  // namespace hone
