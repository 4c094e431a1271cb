#include "data/dataset/block_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"

namespace hone {

namespace {

std::string rewritten_text(HistoryRewrites policy) {
  return std::string("the template renders answers differently once more messages follow (without thinking): ") +
         (policy == HistoryRewrites::kExpand ? "each is trained on in a separate sample that ends with it "
                                               "(history_rewrites: expand)"
                                             : "they are not trained on (history_rewrites: mask)");
}

}  // namespace

struct BlockBuilder::Arrays {
  std::vector<SampleRecord> samples;
  std::vector<int32_t> input_ids, labels, lengths;
  std::vector<float> weights;  // empty until one differs from 1
};

BlockBuilder::BlockBuilder(int64_t max_length, Overlength overlength, HistoryRewrites history_rewrites)
    : max_length_(max_length),
      overlength_(overlength),
      history_rewrites_(history_rewrites),
      arrays_(std::make_shared<Arrays>()) {}

BlockBuilder::~BlockBuilder() = default;

int64_t BlockBuilder::tokens() const { return static_cast<int64_t>(arrays_->input_ids.size()); }

int64_t BlockBuilder::rows() const { return report_.rows; }

void BlockBuilder::append(const EncodedRow& row, const Sample& sample, int64_t begin, int64_t count) {
  const auto labels = sample.labels.begin() + begin;
  const int64_t supervised =
      count == 0 ? 0 : std::count_if(labels + 1, labels + count, [](int32_t label) { return label != kIgnoredLabel; });
  SampleCounts& counts = report_.counts;
  if (supervised == 0) {
    ++counts.unsupervised;
    counts.dropped_tokens += count;
    return;
  }
  Arrays& arrays = *arrays_;
  arrays.samples.push_back({tokens(), static_cast<int32_t>(count), static_cast<int32_t>(supervised), row.origin.row,
                            row.origin.line, row.origin.file, 0, row.text_key});
  if (!sample.weights.empty()) {
    arrays.weights.resize(arrays.input_ids.size(), 1.0f);
    arrays.weights.insert(arrays.weights.end(), sample.weights.begin() + begin, sample.weights.begin() + begin + count);
  } else if (!arrays.weights.empty()) {
    arrays.weights.resize(arrays.weights.size() + static_cast<size_t>(count), 1.0f);
  }
  arrays.input_ids.insert(arrays.input_ids.end(), sample.input_ids.begin() + begin,
                          sample.input_ids.begin() + begin + count);
  arrays.labels.insert(arrays.labels.end(), labels, labels + count);
  ++counts.kept;
  counts.tokens += count;
  counts.supervised += supervised;
}

void BlockBuilder::add_sample(const EncodedRow& row, const Sample& sample, const std::string& where) {
  HONE_ASSERT(sample.labels.size() == sample.input_ids.size());
  HONE_ASSERT(sample.weights.empty() || sample.weights.size() == sample.input_ids.size());
  SampleCounts& counts = report_.counts;
  ++counts.offered;
  arrays_->lengths.push_back(static_cast<int32_t>(sample.input_ids.size()));
  const auto length = static_cast<int64_t>(sample.input_ids.size());
  if (length <= max_length_) return append(row, sample, 0, length);
  switch (overlength_) {
    case Overlength::kDrop:
      ++counts.too_long;
      counts.dropped_tokens += length;
      return;
    case Overlength::kTruncateRight:
    case Overlength::kTruncateLeft:
      ++counts.truncated;
      counts.dropped_tokens += length - max_length_;
      return append(row, sample, overlength_ == Overlength::kTruncateLeft ? length - max_length_ : 0, max_length_);
    case Overlength::kSplit:
      ++counts.split;
      for (int64_t begin = 0; begin < length; begin += max_length_)
        append(row, sample, begin, std::min(max_length_, length - begin));
      return;
    case Overlength::kError:
      throw UserError(fmt::format("a sample has {} tokens, max_length is {}", length, max_length_), where,
                      "raise max_length, or choose overlength: drop, truncate_left, truncate_right or split");
  }
}

void BlockBuilder::add(const EncodedRow& row, const std::string& where) {
  ++report_.rows;
  const SampleCounts before = report_.counts;
  add_sample(row, row.sample, where);
  for (const Sample& sample : row.expanded) add_sample(row, sample, where);
  report_.counts.offered += row.expanded_left_out;
  if (overlength_ == Overlength::kDrop) {
    report_.counts.too_long += row.expanded_left_out;
  } else {
    report_.counts.truncated += row.expanded_left_out;
    report_.counts.unsupervised += row.expanded_left_out;
  }
  const SampleCounts& after = report_.counts;
  if (!row.nothing_learnt.empty()) {
    report_.add_nothing_learnt({row.nothing_learnt, 1, where, row.masked_by_data});
  } else if (after.kept == before.kept && after.too_long == before.too_long) {
    report_.add_nothing_learnt({"their supervised tokens were cut off (max_length and overlength)", 1, where, false});
  }
  report_.answers += row.answers;
  for (const PromptDifference& difference : row.prompt_differences) report_.add_difference({difference, 1, where});
  report_.unused_columns.insert(row.unused_columns.begin(), row.unused_columns.end());
  const auto note = [&](const std::string& text) { report_.add_notice({text, 1, where}); };
  if (!row.turn_end_problem.empty()) note(row.turn_end_problem);
  if (row.doubled_bos) note("the text begins with two bos tokens");
  if (row.partly_shown) note("the template omits a part of an assistant's message, which is not trained on");
  for (const std::string& missing : row.not_rendered) note(missing);
  if (!row.control_tokens.empty()) note(row.control_tokens);
  if (row.history_rewritten) note(rewritten_text(history_rewrites_));
  if (row.other_roles_ask) {
    note("messages of other roles than assistant have a loss weight; train_on: assistant and last ignore it");
  }
}

TokenBlock BlockBuilder::take() {
  const auto arrays = std::exchange(arrays_, std::make_shared<Arrays>());
  TokenBlock block;
  block.samples = arrays->samples;
  block.input_ids = arrays->input_ids;
  block.labels = arrays->labels;
  block.weights = arrays->weights;
  block.lengths = arrays->lengths;
  block.report = std::exchange(report_, {});
  block.memory = arrays;
  block.digest = digest_of(block);
  return block;
}

uint64_t digest_of(const TokenBlock& block) {
  Xxh64 hash;
  hash.update(block.input_ids.size()).update(block.input_ids).update(block.labels).update(block.weights);
  for (const SampleRecord& sample : block.samples) hash.update(static_cast<uint64_t>(sample.length));
  return hash.digest();
}

}  // namespace hone
