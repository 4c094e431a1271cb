#include "infer/generation_schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "ops/attention/cache_pages.h"

namespace hone {

GenerationSchedule::GenerationSchedule(const ScheduleLimits& limits)
    : limits_(limits), slots_(static_cast<size_t>(limits.max_sequences), kFree) {
  HONE_ASSERT(!limits.shares_pages || (limits.pages.size() == 1 && limits.pages[0].window == 0));
  for (const PageGroup& group : limits_.pages) free_.emplace_back(group.pages);
}

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

std::vector<int32_t> GenerationSchedule::tokens_of_page(const Sequence& sequence, size_t page) {
  std::vector<int32_t> tokens(size_t{kCachePage});
  const int64_t first = static_cast<int64_t>(page) * kCachePage;
  for (int64_t i = 0; i < kCachePage; ++i) tokens[static_cast<size_t>(i)] = token(sequence, first + i);
  return tokens;
}

void GenerationSchedule::find_pages(Sequence& sequence) {
  if (!limits_.shares_pages) return;
  Held& held = sequence.held[0];
  const auto most = static_cast<size_t>((length(sequence) - 1) / kCachePage);
  while (held.pages.size() < most) {
    const int32_t before = held.pages.empty() ? PagePool::kNone : held.pages.back();
    const auto page = free_[0].find(sequence.limits.variant, before, tokens_of_page(sequence, held.pages.size()));
    if (!page) break;
    held.pages.push_back(*page);
  }
  held.published = held.pages.size();
  sequence.cached = static_cast<int64_t>(held.pages.size()) * kCachePage;
}

void GenerationSchedule::publish_pages(Sequence& sequence) {
  if (!limits_.shares_pages || sequence.held.empty()) return;
  Held& held = sequence.held[0];
  while (held.publishes && static_cast<int64_t>(held.published + 1) * kCachePage <= sequence.cached) {
    const size_t i = held.published;
    const int32_t before = i > 0 ? held.pages[i - 1] : PagePool::kNone;
    held.publishes = free_[0].publish(held.pages[i], sequence.limits.variant, before, tokens_of_page(sequence, i));
    held.published += held.publishes;
  }
}

void GenerationSchedule::give_pages(Sequence& sequence) {
  for (size_t group = 0; group < sequence.held.size(); ++group) {
    const Held& held = sequence.held[group];
    for (size_t i = held.pages.size(); i > held.dropped; --i) free_[group].give(held.pages[i - 1]);
  }
  sequence.held.clear();
}

void GenerationSchedule::forget_pages() {
  for (PagePool& pool : free_) pool.forget();
  for (auto& [number, sequence] : sequences_) {
    for (Held& held : sequence.held) held.publishes = false;
  }
}

void GenerationSchedule::leave(size_t& slot) {
  Sequence& sequence = sequences_.find(slot)->second;
  publish_pages(sequence);
  give_pages(sequence);
  slot = kFree;
}

int64_t GenerationSchedule::lacking(const Sequence& sequence, size_t group, int64_t positions) {
  const auto held = static_cast<int64_t>(sequence.held[group].pages.size());
  return std::max<int64_t>(0, cache_pages(positions) - held);
}

void GenerationSchedule::take_pages(Sequence& sequence, size_t group, int64_t positions) {
  for (int64_t i = lacking(sequence, group, positions); i > 0; --i) {
    sequence.held[group].pages.push_back(free_[group].take());
  }
}

bool GenerationSchedule::fits(const Sequence& sequence) const {
  for (size_t group = 0; group < free_.size(); ++group) {
    if (limits_.pages[group].window > 0) continue;
    int64_t needed = lacking(sequence, group, length(sequence));
    for (const size_t slot : slots_) {
      if (slot == kFree) continue;
      const Sequence& other = at(slot);
      const auto prompt = static_cast<int64_t>(other.prompt.size());
      const int64_t longest = std::min(prompt + other.limits.max_new_tokens, limits_.max_length);
      if (lacking(other, group, longest) > 0) ++needed;
    }
    if (needed > free_[group].count()) return false;
  }
  return true;
}

void GenerationSchedule::drop_pages(Sequence& sequence) {
  for (size_t group = 0; group < free_.size(); ++group) {
    const int64_t window = limits_.pages[group].window, first_seen = sequence.cached - window + 1;
    Held& held = sequence.held[group];
    if (window == 0 || first_seen <= 0) continue;
    const auto stays = static_cast<size_t>(first_seen / kCachePage);
    for (; held.dropped < std::min(stays, held.pages.size()); ++held.dropped) {
      free_[group].give(std::exchange(held.pages[held.dropped], 0));
    }
  }
}

void GenerationSchedule::admit() {
  for (size_t& slot : slots_) {
    if (slot != kFree && at(slot).ended) leave(slot);
  }
  for (size_t& slot : slots_) {
    if (slot != kFree) continue;
    if (waiting_.empty()) return;
    Sequence& sequence = sequences_.find(waiting_.front())->second;
    sequence.held.assign(free_.size(), {});
    find_pages(sequence);
    if (!fits(sequence)) return give_pages(sequence);
    if (sequence.result.ids.empty()) sequence.result.found = limits_.shares_pages ? sequence.cached : 0;
    for (size_t group = 0; group < free_.size(); ++group) {
      if (limits_.pages[group].window == 0) take_pages(sequence, group, length(sequence));
    }
    slot = waiting_.front();
    waiting_.pop_front();
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

std::vector<size_t> GenerationSchedule::oldest_first() const {
  std::vector<size_t> slots;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot] != kFree) slots.push_back(slot);
  }
  std::sort(slots.begin(), slots.end(), [&](size_t a, size_t b) { return slots_[a] < slots_[b]; });
  return slots;
}

std::vector<int64_t> GenerationSchedule::new_tokens(int variant) const {
  std::vector<int64_t> result(slots_.size(), 0);
  int64_t budget = limits_.max_prefill_tokens;
  for (const size_t slot : oldest_first()) {
    const Sequence& sequence = at(slots_[slot]);
    if (sequence.limits.variant != variant) continue;
    const int64_t missing = static_cast<int64_t>(sequence.prompt.size()) - sequence.cached;
    if (missing <= 0) {
      result[slot] = 1;  // a token that was chosen
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

void GenerationSchedule::make_room(std::vector<int64_t>& tokens) {
  const std::vector<size_t> slots = oldest_first();
  for (const size_t slot : slots) drop_pages(sequences_.find(slots_[slot])->second);
  auto end = slots.end();  // from here on they have been put back
  for (auto slot = slots.begin(); slot < end; ++slot) {
    Sequence& sequence = sequences_.find(slots_[*slot])->second;
    for (size_t group = 0; group < free_.size() && tokens[*slot] > 0; ++group) {
      const int64_t positions = sequence.cached + tokens[*slot];
      while (slot < end && lacking(sequence, group, positions) > free_[group].count()) {
        HONE_ASSERT(end - 1 != slots.begin(), "the cache is too small for a sequence");
        put_back(slots_[*--end]);
        tokens[*end] = 0;
      }
      if (slot < end) take_pages(sequence, group, positions);
    }
  }
}

void GenerationSchedule::put_back(size_t& slot) {
  Sequence& sequence = sequences_.find(slot)->second;
  waiting_.push_front(slot);  // younger than all that run, older than all that wait
  leave(slot);
  sequence.cached = 0;
  ++times_put_back_;
}

void GenerationSchedule::append_pages(GenerationPass& pass, size_t slot) const {
  for (size_t group = 0; group < free_.size(); ++group) {
    std::vector<int32_t>& table = pass.pages[group];
    const size_t end = table.size() + static_cast<size_t>(cache_pages(limits_.max_length));
    if (slots_[slot] != kFree) {
      const std::vector<int32_t>& held = at(slots_[slot]).held[group].pages;
      table.insert(table.end(), held.begin(), held.end());
    }
    table.resize(end, 0);
  }
}

bool GenerationSchedule::next(GenerationPass& pass) {
  for (const size_t slot : slots_) {
    if (slot != kFree) publish_pages(sequences_.find(slot)->second);
  }
  admit();
  pass = {};
  pass.cu_seqlens = {0};
  pass.pages.resize(free_.size());
  std::vector<int64_t> tokens;
  do {  // again if all of the variant have been put back
    pass.variant = last_variant_ = next_variant();
    tokens = new_tokens(pass.variant);
    make_room(tokens);
  } while (running() > 0 && std::all_of(tokens.begin(), tokens.end(), [](int64_t count) { return count == 0; }));
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
    append_pages(pass, slot);
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
  const auto slot = std::find(slots_.begin(), slots_.end(), number);
  if (slot != slots_.end()) leave(*slot);
  const auto found = sequences_.find(number);
  GeneratedSequence result = std::move(found->second.result);
  sequences_.erase(found);
  return result;
}

}  // namespace hone
