#include "data/packing/sample_store.h"

#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"

namespace hone {

void SampleStore::append(const TokenBlock& block, int32_t dataset) {
  const auto index = static_cast<uint32_t>(blocks_.size());
  entries_.reserve(entries_.size() + block.samples.size());
  for (size_t i = 0; i < block.samples.size(); ++i) entries_.push_back({index, static_cast<uint32_t>(i)});
  blocks_.push_back({block, dataset});
  counts_ += block.report.counts;
}

SampleView SampleStore::operator[](int64_t i) const {
  const Block& block = blocks_[entries_[static_cast<size_t>(i)].block];
  const SampleRecord& sample = record(i);
  const auto begin = static_cast<size_t>(sample.begin), count = static_cast<size_t>(sample.length);
  const TokenBlock& tokens = block.tokens;
  return {tokens.input_ids.subspan(begin, count),
          tokens.labels.subspan(begin, count),
          tokens.weights.empty() ? tokens.weights : tokens.weights.subspan(begin, count),
          block.dataset,
          {sample.row, sample.line, sample.file},
          sample.text_key};
}

void SampleStore::count_kept() {
  counts_.kept = size();
  counts_.tokens = counts_.supervised = 0;
  for (int64_t i = 0; i < size(); ++i) {
    counts_.tokens += record(i).length;
    counts_.supervised += record(i).supervised;
  }
}

SampleStore SampleStore::extract(const std::vector<int64_t>& positions) {
  SampleStore taken(max_length_);
  taken.blocks_ = blocks_;
  std::vector<Entry> rest;
  rest.reserve(entries_.size() - positions.size());
  auto next = positions.begin();
  for (int64_t i = 0; i < size(); ++i) {
    const bool chosen = next != positions.end() && *next == i;
    (chosen ? taken.entries_ : rest).push_back(entries_[static_cast<size_t>(i)]);
    if (chosen) ++next;
  }
  HONE_ASSERT(next == positions.end(), "positions ascend and are in the store");
  entries_ = std::move(rest);
  count_kept();
  taken.count_kept();
  return taken;
}

std::string SampleStore::fingerprint() const {
  Xxh64 hash;
  for (const Block& block : blocks_) hash.update(block.tokens.digest);
  for (const Entry& entry : entries_) hash.update(uint64_t{entry.block} << 32 | entry.sample);
  return hash_text(hash.digest());
}

std::string SampleStore::fingerprint_of(int32_t dataset) const {
  Xxh64 hash;
  uint64_t first = 0;  // blocks are numbered within the data set, so other data sets have no effect
  while (first < blocks_.size() && blocks_[first].dataset != dataset) ++first;
  for (const Block& block : blocks_) {
    if (block.dataset == dataset) hash.update(block.tokens.digest);
  }
  for (const Entry& entry : entries_) {
    if (blocks_[entry.block].dataset == dataset) hash.update((entry.block - first) << 32 | entry.sample);
  }
  return hash_text(hash.digest());
}

}  // namespace hone
