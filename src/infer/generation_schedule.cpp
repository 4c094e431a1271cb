#include "infer/generation_schedule.h"

#include <algorithm>

#include "core/base/error.h"

namespace hone {

GenerationSchedule::GenerationSchedule(std::span<const std::vector<int32_t>> prompts, ScheduleLimits limits)
    : prompts_(prompts),
      limits_(std::move(limits)),
      sequences_(prompts.size()),
      slots_(static_cast<size_t>(limits_.max_sequences), kFree) {
  if (!sequences_.empty()) sequences_.front().cached = limits_.cached;
  if (!limits_.track_seen) return;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    std::vector<int32_t>& seen = sequences_[i].seen;
    seen = prompts_[i];
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  }
}

int64_t GenerationSchedule::length(size_t sequence) const {
  return static_cast<int64_t>(prompts_[sequence].size() + sequences_[sequence].result.ids.size());
}

int32_t GenerationSchedule::token(size_t sequence, int64_t position) const {
  const std::vector<int32_t>& prompt = prompts_[sequence];
  const auto index = static_cast<size_t>(position);
  return index < prompt.size() ? prompt[index] : sequences_[sequence].result.ids[index - prompt.size()];
}

void GenerationSchedule::admit() {
  for (size_t& slot : slots_) {
    if (slot != kFree && sequences_[slot].ended) slot = kFree;
    if (slot == kFree && waiting_ < sequences_.size()) slot = waiting_++;
  }
}

std::vector<int64_t> GenerationSchedule::new_tokens() const {
  std::vector<size_t> oldest_first;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] != kFree) oldest_first.push_back(slot);
  }
  std::sort(oldest_first.begin(), oldest_first.end(), [&](size_t a, size_t b) { return slots_[a] < slots_[b]; });
  std::vector<int64_t> result(slots_.size(), 0);
  int64_t budget = limits_.max_prefill_tokens;
  for (const size_t slot : oldest_first) {
    const Sequence& sequence = sequences_[slots_[slot]];
    const int64_t missing = length(slots_[slot]) - sequence.cached;
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

void GenerationSchedule::append(GenerationPass& pass, size_t index, int64_t tokens) {
  Sequence& sequence = sequences_[index];
  for (int64_t position = sequence.cached; position < sequence.cached + tokens; ++position) {
    pass.input_ids.push_back(token(index, position));
    pass.positions.push_back(static_cast<int32_t>(position));
  }
  sequence.cached += tokens;
  if (sequence.cached == length(index)) pass.choices.push_back({pass.rows.size(), index});
  pass.rows.push_back(static_cast<int32_t>(pass.input_ids.size()) - 1);
  pass.max_seqlen = std::max(pass.max_seqlen, tokens);
}

bool GenerationSchedule::next(GenerationPass& pass) {
  admit();
  pass = {};
  pass.cu_seqlens = {0};
  const std::vector<int64_t> tokens = new_tokens();
  size_t used = slots_.size();
  while (used > 0 && slots_[used - 1] == kFree) --used;
  for (size_t slot = 0; slot < used; ++slot) {
    const size_t index = slots_[slot];
    pass.lengths.push_back(index == kFree ? 0 : static_cast<int32_t>(sequences_[index].cached));
    if (tokens[slot] > 0) append(pass, index, tokens[slot]);
    pass.cu_seqlens.push_back(static_cast<int32_t>(pass.input_ids.size()));
  }
  return used > 0;
}

void GenerationSchedule::accept(size_t index, int32_t id) {
  Sequence& sequence = sequences_[index];
  HONE_ASSERT(!sequence.ended);
  sequence.result.ids.push_back(id);
  if (limits_.track_seen) {
    const auto place = std::lower_bound(sequence.seen.begin(), sequence.seen.end(), id);
    if (place == sequence.seen.end() || *place != id) sequence.seen.insert(place, id);
  }
  const bool stop = std::find(limits_.stop_ids.begin(), limits_.stop_ids.end(), id) != limits_.stop_ids.end();
  sequence.result.finish = stop ? FinishReason::kStop : FinishReason::kLength;
  sequence.ended = stop || static_cast<int64_t>(sequence.result.ids.size()) >= limits_.max_new_tokens ||
                   length(index) >= limits_.max_length;
}

std::vector<int32_t> GenerationSchedule::cached_tokens(size_t sequence) const {
  std::vector<int32_t> tokens;
  for (int64_t position = 0; position < sequences_[sequence].cached; ++position) {
    tokens.push_back(token(sequence, position));
  }
  return tokens;
}

void GenerationSchedule::stop() {
  for (Sequence& sequence : sequences_) {
    if (!sequence.ended) sequence.result.finish = FinishReason::kStopped;
    sequence.ended = true;
  }
  waiting_ = sequences_.size();
}

std::vector<GeneratedSequence> GenerationSchedule::take_results() {
  std::vector<GeneratedSequence> results;
  results.reserve(sequences_.size());
  for (Sequence& sequence : sequences_) results.push_back(std::move(sequence.result));
  return results;
}

}  // namespace hone
