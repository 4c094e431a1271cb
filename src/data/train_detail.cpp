#include "data/train_detail.h"

#include <fmt/format.h>

#include <algorithm>

namespace hone {

namespace {

/// [characters + 1] where each character of valid UTF-8 begins, and the end.
std::vector<size_t> character_starts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

size_t offset_of(const Json& detail, const char* key, size_t characters, const RowColumns& columns,
                 const std::string& name) {
  const auto found = detail.find(key);
  if (found == detail.end() || !found->is_number_integer()) {
    columns.fail(fmt::format("{} has no whole number '{}'", name, key),
                 R"(write {"begin_offset": 0, "end_offset": 11, "train": true})");
  }
  const double offset = found->get<double>();
  if (!(offset >= 0 && offset < static_cast<double>(characters))) {
    columns.fail(fmt::format("{}.{} is {}, but the content has {} characters", name, key, found->dump(), characters),
                 "offsets count characters from 0; end_offset is the last one of the stretch");
  }
  return static_cast<size_t>(offset);
}

}  // namespace

float loss_factor(const Json& value, const RowColumns& columns, const std::string& name) {
  if (!value.is_boolean() && !value.is_number()) columns.fail_type(name, "true, false or a number", value);
  const double factor = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
  if (!(factor >= 0 && factor <= kMaxWeight)) {
    columns.fail(fmt::format("{} is {}", name, factor), fmt::format("a weight is in [0, {}]", kMaxWeight));
  }
  return static_cast<float>(factor);
}

std::vector<TrainDetail> train_detail_of(const Json& json, const std::string& content, const RowColumns& columns,
                                         const std::string& name) {
  if (!json.is_array()) columns.fail_type(name, "a list of stretches", json);
  const std::vector<size_t> starts = character_starts(content);
  std::vector<TrainDetail> details;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string stretch = fmt::format("{}[{}]", name, i);
    if (!json[i].is_object())
      columns.fail_type(stretch, R"({"begin_offset": …, "end_offset": …, "train": …})", json[i]);
    const size_t begin = offset_of(json[i], "begin_offset", starts.size() - 1, columns, stretch);
    const size_t last = offset_of(json[i], "end_offset", starts.size() - 1, columns, stretch);
    if (last < begin)
      columns.fail(fmt::format("{} ends before it begins", stretch), "end_offset is its last character");
    const char* key = json[i].contains("train") ? "train" : "weight";
    if (!json[i].contains(key)) columns.fail(fmt::format("{} has neither 'train' nor 'weight'", stretch), "state one");
    details.push_back({starts[begin], starts[last + 1], loss_factor(json[i][key], columns, stretch + "." + key)});
  }
  std::sort(details.begin(), details.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < details.size(); ++i) {
    if (details[i].begin < details[i - 1].end)
      columns.fail(fmt::format("{} has stretches that overlap", name), "state each character once");
  }
  return details;
}

}  // namespace hone
