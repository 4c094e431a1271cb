#include "report/page/load_record.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/text/json.h"
#include "report/page/record_rows.h"

namespace hone {

namespace {

constexpr double kHot = 2;  // times the mean load
constexpr size_t kMostNamed = 50;

std::string base64(const std::vector<uint8_t>& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve(bytes.size() / 3 * 4 + 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) {
      const bool is_padding = i + k > bytes.size();
      text += is_padding ? '=' : kDigits[word >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

}  // namespace

uint8_t load_byte(double share, size_t experts) {
  if (!(share > 0)) return 0;
  return static_cast<uint8_t>(std::clamp(std::round(32 * share * static_cast<double>(experts)), 1.0, 255.0));
}

void LoadRecord::add(const Json& row) {
  const int64_t step = row_step(row);
  const auto found = row.find("layers");
  if (found == row.end() || !found->is_array() || found->empty() || !(*found)[0].is_array()) return;
  const Json& layers = *found;
  const size_t experts = layers[0].size();
  if (experts == 0 || (layers_ != 0 && (layers.size() != layers_ || experts != experts_))) return;
  if (!steps_.empty() && step <= steps_.back()) return;
  std::vector<double> loads;
  std::vector<uint8_t> bytes;
  for (const Json& layer : layers) {
    if (!layer.is_array() || layer.size() != experts) return;
    for (const Json& share : layer) {
      if (!share.is_number()) return;
      const double value = share.get<double>();
      loads.push_back(value * static_cast<double>(experts));
      bytes.push_back(load_byte(value, experts));
    }
  }
  layers_ = layers.size();
  experts_ = experts;
  last_ = std::move(loads);
  if (rows_.size() > 1 && skipped_ + 1 < stride_) {  // the last row so far is replaced
    rows_.pop_back();
    steps_.pop_back();
    ++skipped_;
  } else {
    skipped_ = 0;
  }
  rows_.push_back(std::move(bytes));
  steps_.push_back(step);
  if (rows_.size() < kMostRows) return;
  size_t kept = 0;
  for (size_t i = 0; i < rows_.size(); i += 2) {
    rows_[kept] = std::move(rows_[i]);
    steps_[kept++] = steps_[i];
  }
  if (rows_.size() % 2 == 0) {  // the last row stays
    rows_[kept] = std::move(rows_.back());
    steps_[kept++] = steps_.back();
  }
  rows_.resize(kept);
  steps_.resize(kept);
  stride_ *= 2;
}

Json LoadRecord::json(size_t most) const {
  const size_t cells = layers_ * experts_;
  if (rows_.empty() || cells > most) return nullptr;
  const size_t count = std::min(rows_.size(), std::max<size_t>(most / cells, 1));
  std::vector<uint8_t> bytes;
  Json steps = Json::array();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = count == 1 ? rows_.size() - 1 : i * (rows_.size() - 1) / (count - 1);
    bytes.insert(bytes.end(), rows_[at].begin(), rows_[at].end());
    steps.push_back(steps_[at]);
  }
  std::vector<size_t> dead, hot;
  for (size_t i = 0; i < cells; ++i) {
    if (!(last_[i] > 0)) dead.push_back(i);
    if (last_[i] >= kHot) hot.push_back(i);
  }
  std::stable_sort(hot.begin(), hot.end(), [&](size_t a, size_t b) { return last_[a] > last_[b]; });
  Json dead_names = Json::array(), hot_names = Json::array();
  for (size_t i = 0; i < std::min(dead.size(), kMostNamed); ++i) {
    dead_names.push_back({dead[i] / experts_, dead[i] % experts_});
  }
  for (size_t i = 0; i < std::min(hot.size(), kMostNamed); ++i) {
    hot_names.push_back({hot[i] / experts_, hot[i] % experts_, std::round(100 * last_[hot[i]]) / 100});
  }
  return {{"steps", std::move(steps)},     {"layers", layers_},
          {"experts", experts_},           {"bytes", base64(bytes)},
          {"dead", std::move(dead_names)}, {"dead_count", dead.size()},
          {"hot", std::move(hot_names)},   {"hot_count", hot.size()}};
}

}  // namespace hone
