#include "data/data_options.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "core/error.h"

namespace hone {

namespace {

constexpr std::array<std::pair<std::string_view, Overlength>, 5> kOverlengths = {
    {{"drop", Overlength::kDrop},
     {"truncate_left", Overlength::kTruncateLeft},
     {"truncate_right", Overlength::kTruncateRight},
     {"split", Overlength::kSplit},
     {"error", Overlength::kError}}};

constexpr std::array<std::pair<std::string_view, TrainOn>, 4> kTrainOns = {{{"assistant", TrainOn::kAssistant},
                                                                            {"last", TrainOn::kLast},
                                                                            {"all", TrainOn::kAll},
                                                                            {"completion", TrainOn::kCompletion}}};

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

template <class Value, size_t N>
std::string_view name_in(const std::array<std::pair<std::string_view, Value>, N>& values, Value value) {
  for (const auto& [name, known] : values) {
    if (known == value) return name;
  }
  HONE_ASSERT(false, "every value has a name");
}

}  // namespace

std::string_view name_of(Overlength overlength) { return name_in(kOverlengths, overlength); }

std::string_view name_of(TrainOn train_on) { return name_in(kTrainOns, train_on); }

Overlength overlength_of(std::string_view name) { return value_of("overlength", name, kOverlengths); }

TrainOn train_on_of(std::string_view name) { return value_of("train_on", name, kTrainOns); }

}  // namespace hone
