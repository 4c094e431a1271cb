#include "data/sample_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "core/error.h"

namespace hone {

namespace {

int64_t count_supervised(std::span<const int32_t> labels) {
  if (labels.empty()) return 0;
  return std::count_if(labels.begin() + 1, labels.end(), [](int32_t label) { return label != kIgnoredLabel; });
}

}  // namespace

int64_t Sample::supervised() const { return count_supervised(labels); }

int64_t SampleStore::length(int64_t i) const {
  return offsets_[static_cast<size_t>(i) + 1] - offsets_[static_cast<size_t>(i)];
}

SampleView SampleStore::operator[](int64_t i) const {
  const auto begin = static_cast<size_t>(offsets_[static_cast<size_t>(i)]), count = static_cast<size_t>(length(i));
  return {{input_ids_.data() + begin, count},
          {labels_.data() + begin, count},
          {weights_.data() + begin, count},
          datasets_[static_cast<size_t>(i)]};
}

void SampleStore::append(std::span<const int32_t> ids, std::span<const int32_t> labels, std::span<const float> weights,
                         int32_t dataset) {
  const int64_t supervised = count_supervised(labels);
  if (supervised == 0) {
    ++counts_.unsupervised;
    counts_.dropped_tokens += static_cast<int64_t>(ids.size());
    return;
  }
  input_ids_.insert(input_ids_.end(), ids.begin(), ids.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  if (weights.empty()) {
    weights_.insert(weights_.end(), ids.size(), 1.0f);
  } else {
    weights_.insert(weights_.end(), weights.begin(), weights.end());
  }
  datasets_.push_back(dataset);
  offsets_.push_back(static_cast<int64_t>(input_ids_.size()));
  ++counts_.kept;
  counts_.tokens += static_cast<int64_t>(ids.size());
  counts_.supervised += supervised;
}

void SampleStore::add(const Sample& sample, const std::string& where) {
  HONE_ASSERT(sample.labels.size() == sample.input_ids.size());
  HONE_ASSERT(sample.weights.empty() || sample.weights.size() == sample.input_ids.size());
  ++counts_.offered;
  const auto length = static_cast<int64_t>(sample.input_ids.size());
  const auto add_range = [&](int64_t begin, int64_t count) {
    const auto first = static_cast<size_t>(begin), size = static_cast<size_t>(count);
    const std::span<const float> weights(sample.weights);
    append(std::span(sample.input_ids).subspan(first, size), std::span(sample.labels).subspan(first, size),
           weights.empty() ? weights : weights.subspan(first, size), sample.dataset);
  };
  if (length <= max_length_) return add_range(0, length);
  switch (overlength_) {
    case Overlength::kDrop:
      ++counts_.too_long;
      counts_.dropped_tokens += length;
      return;
    case Overlength::kTruncateRight:
    case Overlength::kTruncateLeft:
      ++counts_.truncated;
      counts_.dropped_tokens += length - max_length_;
      return add_range(overlength_ == Overlength::kTruncateLeft ? length - max_length_ : 0, max_length_);
    case Overlength::kSplit:
      ++counts_.split;
      for (int64_t begin = 0; begin < length; begin += max_length_)
        add_range(begin, std::min(max_length_, length - begin));
      return;
    case Overlength::kError:
      throw UserError(fmt::format("a sample has {} tokens, max_length is {}", length, max_length_), where,
                      "raise max_length, or choose overlength: drop, truncate_left, truncate_right or split");
  }
}

SampleStore SampleStore::extract(const std::vector<int64_t>& indices) {
  const std::set<int64_t> chosen(indices.begin(), indices.end());
  SampleStore taken(max_length_, overlength_), rest(max_length_, overlength_);
  for (int64_t i = 0; i < size(); ++i) {
    const SampleView view = (*this)[i];
    (chosen.contains(i) ? taken : rest).append(view.input_ids, view.labels, view.weights, view.dataset);
  }
  const Counts before = counts_;
  *this = std::move(rest);
  counts_.offered = before.offered;
  counts_.too_long = before.too_long;
  counts_.truncated = before.truncated;
  counts_.split = before.split;
  counts_.unsupervised = before.unsupervised;
  counts_.dropped_tokens = before.dropped_tokens;
  return taken;
}

std::string SampleStore::fingerprint() const {
  uint64_t hash = 1469598103934665603u;  // FNV-1a over 64-bit words
  const auto mix = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  for (size_t i = 0; i < input_ids_.size(); ++i) {
    mix((uint64_t{static_cast<uint32_t>(input_ids_[i])} << 32) | static_cast<uint32_t>(labels_[i]));
  }
  for (float weight : weights_) mix(std::bit_cast<uint32_t>(weight));
  for (int64_t offset : offsets_) mix(static_cast<uint64_t>(offset));
  return fmt::format("{:016x}", hash);
}

}  // namespace hone
