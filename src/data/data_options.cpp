#include "data/data_options.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/error.h"

namespace hone {

namespace {

template <class Value, size_t N>
Value value_of(std::string_view key, std::string_view name,
               const std::array<std::pair<std::string_view, Value>, N>& values) {
  std::vector<std::string_view> names;
  for (const auto& [known, value] : values) {
    if (known == name) return value;
    names.push_back(known);
  }
  throw UserError(fmt::format("{} is '{}'.{}", key, name, did_you_mean(name, names)), std::string(key),
                  fmt::format("one of {}", fmt::join(names, ", ")));
}

}  // namespace

Overlength overlength_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Overlength>, 5> kValues = {
      {{"drop", Overlength::kDrop},
       {"truncate_left", Overlength::kTruncateLeft},
       {"truncate_right", Overlength::kTruncateRight},
       {"split", Overlength::kSplit},
       {"error", Overlength::kError}}};
  return value_of("overlength", name, kValues);
}

TrainOn train_on_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, TrainOn>, 4> kValues = {
      {{"assistant", TrainOn::kAssistant},
       {"last", TrainOn::kLast},
       {"all", TrainOn::kAll},
       {"completion", TrainOn::kCompletion}}};
  return value_of("train_on", name, kValues);
}

}  // namespace hone
