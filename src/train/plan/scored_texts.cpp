#include "train/plan/scored_texts.h"

#include <algorithm>

#include "core/base/error.h"

namespace hone {

namespace {

/// Tokens of a micro-batch of several texts; a longer text is alone.
constexpr int64_t kBatchTokens = 4096;

void append(MicroBatch& batch, const ScoredText& text, int64_t place) {
  const auto first = static_cast<int32_t>(batch.input_ids.size());
  const auto length = static_cast<int64_t>(text.ids.size());
  HONE_ASSERT(text.from >= 1 && text.from < length, "a text has tokens before those that are scored");
  batch.input_ids.insert(batch.input_ids.end(), text.ids.begin(), text.ids.end());
  batch.sample_ids.insert(batch.sample_ids.end(), text.ids.size(), place);
  for (int64_t i = 0; i < length; ++i) {
    batch.positions.push_back(static_cast<int32_t>(i));
    if (i + 1 < text.from || i + 1 == length) continue;
    batch.rows.push_back(first + static_cast<int32_t>(i));
    batch.targets.push_back(text.ids[static_cast<size_t>(i) + 1]);
    batch.loss_weights.push_back(1);
    batch.dataset_ids.push_back(static_cast<int32_t>(place));
  }
  batch.cu_seqlens.push_back(first + static_cast<int32_t>(length));
  batch.max_seqlen = std::max(batch.max_seqlen, length);
}

}  // namespace

std::vector<ScoredBatches> scored_batches(std::span<const ScoredText> texts) {
  std::vector<ScoredBatches> parts;
  for (const ScoredText& text : texts) {
    if (parts.empty() || parts.back().texts == kScoredAtOnce) parts.emplace_back();
    ScoredBatches& part = parts.back();
    const auto length = static_cast<int64_t>(text.ids.size());
    if (part.batches.empty() || part.batches.back().tokens() + length > kBatchTokens) {
      part.batches.emplace_back().cu_seqlens = {0};
    }
    append(part.batches.back(), text, part.texts++);
  }
  return parts;
}

BatchCapacity scored_capacity(std::span<const ScoredText> texts) {
  BatchCapacity capacity{.max_tokens = 1, .max_documents = 1, .max_supervised = 1, .max_seqlen = 1};
  for (const ScoredBatches& part : scored_batches(texts)) {
    for (const MicroBatch& batch : part.batches) {
      capacity.max_tokens = std::max(capacity.max_tokens, batch.tokens());
      capacity.max_documents = std::max(capacity.max_documents, batch.documents());
      capacity.max_supervised = std::max(capacity.max_supervised, batch.supervised());
      capacity.max_seqlen = std::max(capacity.max_seqlen, batch.max_seqlen);
    }
  }
  return capacity;
}

}  // namespace hone
