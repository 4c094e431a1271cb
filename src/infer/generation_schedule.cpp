#include "infer/generation_schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"

namespace hone {

GenerationSchedule::GenerationSchedule(const ScheduleLimits& limits)
    : limits_(limits), slots_(static_cast<size_t>(limits.max_sequences), kFree) {}

size_t GenerationSchedule::add(std::vector<int32_t> prompt, SequenceLimits limits) {
  Sequence sequence{.prompt = std::move(prompt), .limits = std::move(limits)};
  sequence.cached = sequence.limits.cached;
  if (sequence.limits.track_seen) {
    std::vector<int32_t>& seen = sequence.seen;
    seen = sequence.prompt;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  }
  waiting_.push_back(next_number_);
  sequences_.emplace(next_number_, std::move(sequence));
  return next_number_++;
}

int64_t GenerationSchedule::length(const Sequence& sequence) {
  return static_cast<int64_t>(sequence.prompt.size() + sequence.result.ids.size());
}

int32_t GenerationSchedule::token(const Sequence& sequence, int64_t position) {
  const std::vector<int32_t>& prompt = sequence.prompt;
  const auto index = static_cast<size_t>(position);
  return index < prompt.size() ? prompt[index] : sequence.result.ids[index - prompt.size()];
}

void GenerationSchedule::admit() {
  for (size_t& slot : slots_) {
    if (slot != kFree && at(slot).ended) slot = kFree;
    if (slot == kFree && !waiting_.empty()) {
      slot = waiting_.front();
      waiting_.pop_front();
    }
  }
}

int GenerationSchedule::next_variant() const {
  std::optional<int> least, after;
  for (const size_t slot : slots_) {
    if (slot == kFree) continue;
    const int variant = at(slot).limits.variant;
    if (!least || variant < *least) least = variant;
    if (variant > last_variant_ && (!after || variant < *after)) after = variant;
  }
  return after.value_or(least.value_or(last_variant_));
}

std::vector<int64_t> GenerationSchedule::new_tokens(int variant) const {
  std::vector<size_t> oldest_first;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] != kFree && at(slots_[slot]).limits.variant == variant) oldest_first.push_back(slot);
  }
  std::sort(oldest_first.begin(), oldest_first.end(), [&](size_t a, size_t b) { return slots_[a] < slots_[b]; });
  std::vector<int64_t> result(slots_.size(), 0);
  int64_t budget = limits_.max_prefill_tokens;
  for (const size_t slot : oldest_first) {
    const Sequence& sequence = at(slots_[slot]);
    const int64_t missing = length(sequence) - sequence.cached;
    if (!sequence.result.ids.empty()) {
      result[slot] = missing;  // the token that was chosen last
      continue;
    }
    const int64_t piece = std::min(missing, limits_.max_prefill_tokens);
    if (piece > budget) continue;
    result[slot] = piece;
    budget -= piece;
  }
  return result;
}

void GenerationSchedule::append(GenerationPass& pass, size_t number, Sequence& sequence, int64_t tokens) {
  for (int64_t position = sequence.cached; position < sequence.cached + tokens; ++position) {
    pass.input_ids.push_back(token(sequence, position));
    pass.positions.push_back(static_cast<int32_t>(position));
  }
  sequence.cached += tokens;
  if (sequence.cached == length(sequence)) pass.choices.push_back({pass.rows.size(), number});
  pass.rows.push_back(static_cast<int32_t>(pass.input_ids.size()) - 1);
  pass.max_seqlen = std::max(pass.max_seqlen, tokens);
}

bool GenerationSchedule::next(GenerationPass& pass) {
  admit();
  pass = {};
  pass.cu_seqlens = {0};
  pass.variant = last_variant_ = next_variant();
  const std::vector<int64_t> tokens = new_tokens(pass.variant);
  size_t used = slots_.size();
  while (used > 0 && slots_[used - 1] == kFree) --used;
  for (size_t slot = 0; slot < used; ++slot) {
    const size_t number = slots_[slot];
    if (number == kFree) {
      pass.lengths.push_back(0);
    } else {
      Sequence& sequence = sequences_.find(number)->second;
      pass.lengths.push_back(static_cast<int32_t>(sequence.cached));
      if (tokens[slot] > 0) append(pass, number, sequence, tokens[slot]);
    }
    pass.cu_seqlens.push_back(static_cast<int32_t>(pass.input_ids.size()));
  }
  return used > 0;
}

void GenerationSchedule::accept(size_t number, int32_t id) {
  Sequence& sequence = sequences_.find(number)->second;
  HONE_ASSERT(!sequence.ended);
  sequence.result.ids.push_back(id);
  if (sequence.limits.track_seen) {
    const auto place = std::lower_bound(sequence.seen.begin(), sequence.seen.end(), id);
    if (place == sequence.seen.end() || *place != id) sequence.seen.insert(place, id);
  }
  const std::vector<int32_t>& stop_ids = sequence.limits.stop_ids;
  const bool stop = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
  sequence.result.finish = stop ? FinishReason::kStop : FinishReason::kLength;
  sequence.ended = stop || static_cast<int64_t>(sequence.result.ids.size()) >= sequence.limits.max_new_tokens ||
                   length(sequence) >= limits_.max_length;
}

std::vector<int32_t> GenerationSchedule::cached_tokens(size_t number) const {
  const Sequence& sequence = at(number);
  std::vector<int32_t> tokens;
  for (int64_t position = 0; position < sequence.cached; ++position) tokens.push_back(token(sequence, position));
  return tokens;
}

void GenerationSchedule::stop(size_t number) {
  Sequence& sequence = sequences_.find(number)->second;
  if (!sequence.ended) sequence.result.finish = FinishReason::kStopped;
  sequence.ended = true;
  std::erase(waiting_, number);
}

GeneratedSequence GenerationSchedule::take(size_t number) {
  stop(number);
  std::replace(slots_.begin(), slots_.end(), number, kFree);
  const auto found = sequences_.find(number);
  GeneratedSequence result = std::move(found->second.result);
  sequences_.erase(found);
  return result;
}

}  // namespace hone
