#include "infer/generation_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

namespace hone {
namespace {

using testing::ElementsAre;
using Prompts = std::vector<std::vector<int32_t>>;

ScheduleLimits limits(int64_t max_sequences, int64_t max_prefill_tokens, int64_t max_length = 100) {
  return {.max_sequences = max_sequences, .max_length = max_length, .max_prefill_tokens = max_prefill_tokens};
}

void add(GenerationSchedule& schedule, const Prompts& prompts, int64_t max_new_tokens) {
  for (const auto& prompt : prompts) schedule.add(prompt, {.max_new_tokens = max_new_tokens, .stop_ids = {99}});
}

/// Accepts 10 + the sequence's index for every choice of a pass.
void answer(GenerationSchedule& schedule, const GenerationPass& pass) {
  for (const auto& choice : pass.choices) schedule.accept(choice.sequence, 10 + static_cast<int32_t>(choice.sequence));
}

TEST(GenerationSchedule, ReadsPromptsPackedAndThenOneTokenEach) {
  const Prompts prompts = {{1, 2, 3}, {4, 5}};
  GenerationSchedule schedule(limits(4, 16));
  add(schedule, prompts, 2);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(pass.positions, ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(pass.cu_seqlens, ElementsAre(0, 3, 5));
  EXPECT_THAT(pass.lengths, ElementsAre(0, 0));
  EXPECT_THAT(pass.rows, ElementsAre(2, 4));
  EXPECT_EQ(pass.max_seqlen, 3);
  ASSERT_EQ(pass.choices.size(), 2u);
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 11));
  EXPECT_THAT(pass.positions, ElementsAre(3, 2));
  EXPECT_THAT(pass.lengths, ElementsAre(3, 2));
  answer(schedule, pass);
  EXPECT_FALSE(schedule.next(pass));
  const GeneratedSequence result = schedule.take(1);
  EXPECT_THAT(result.ids, ElementsAre(11, 11));
  EXPECT_EQ(result.finish, FinishReason::kLength);
}

TEST(GenerationSchedule, AnEndedSequenceLeavesItsSlotToTheNextPrompt) {
  const Prompts prompts = {{1}, {2}, {3}};
  GenerationSchedule schedule(limits(2, 16));
  add(schedule, prompts, 5);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(1, 2));
  schedule.accept(0, 99);
  schedule.accept(1, 50);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(3, 50));  // the third prompt in the first slot
  EXPECT_THAT(pass.lengths, ElementsAre(0, 1));
  schedule.accept(2, 50);
  schedule.accept(1, 99);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.cu_seqlens, ElementsAre(0, 1));  // the second slot has been removed
  schedule.accept(2, 99);
  EXPECT_FALSE(schedule.next(pass));
  EXPECT_EQ(schedule.take(0).finish, FinishReason::kStop);
  const GeneratedSequence second = schedule.take(1);
  EXPECT_THAT(second.ids, ElementsAre(50, 99));
  EXPECT_EQ(second.answer().size(), 1u);
}

TEST(GenerationSchedule, CutsLongPromptsAtTheSamePlacesWhateverRunsBesideThem) {
  const Prompts prompts = {{1}, {1, 2, 3, 4, 5, 6, 7}, {9, 8}};
  GenerationSchedule schedule(limits(3, 3));
  add(schedule, prompts, 9);
  GenerationPass pass;
  // The chunk of three does not fit with the first prompt, but the short prompt does.
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(1, 9, 8));
  EXPECT_THAT(pass.cu_seqlens, ElementsAre(0, 1, 1, 3));
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 1, 2, 3, 12));
  EXPECT_EQ(pass.choices.size(), 2u);  // none for an incomplete prompt
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 4, 5, 6, 12));
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 7, 12));
  EXPECT_EQ(pass.choices.size(), 3u);
}

TEST(GenerationSchedule, SequencesEndAtTheLengthOfTheCache) {
  GenerationSchedule schedule(limits(1, 16, 5));
  add(schedule, {{1, 2, 3}}, 50);
  GenerationPass pass;
  while (schedule.next(pass)) answer(schedule, pass);
  EXPECT_THAT(schedule.take(0).ids, ElementsAre(10, 10));
}

TEST(GenerationSchedule, RemembersDistinctTokensOfPromptAndAnswer) {
  GenerationSchedule schedule(limits(1, 16));
  schedule.add({7, 3, 7}, {.max_new_tokens = 50, .track_seen = true});
  GenerationPass pass;
  for (const int32_t id : {5, 3, 9}) {
    ASSERT_TRUE(schedule.next(pass));
    schedule.accept(0, id);
  }
  EXPECT_THAT(schedule.seen(0), ElementsAre(3, 5, 7, 9));
}

TEST(GenerationSchedule, WithoutPromptsThereIsNothingToDo) {
  GenerationSchedule schedule(limits(2, 16));
  GenerationPass pass;
  EXPECT_FALSE(schedule.next(pass));
}

TEST(GenerationSchedule, SequencesComeAndGoBetweenPasses) {
  GenerationSchedule schedule(limits(2, 16));
  add(schedule, {{1}, {2}, {3}}, 9);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  answer(schedule, pass);
  schedule.stop(0);  // it runs
  schedule.stop(2);  // it waits
  EXPECT_EQ(schedule.take(2).finish, FinishReason::kStopped);
  EXPECT_THAT(schedule.take(0).ids, ElementsAre(10));
  EXPECT_EQ(schedule.add({7, 8}, {.max_new_tokens = 1}), 3u);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(7, 8, 11));
  answer(schedule, pass);
  schedule.stop(1);
  EXPECT_FALSE(schedule.next(pass));
  EXPECT_EQ(schedule.take(3).finish, FinishReason::kLength);
}

std::vector<int32_t> numbered(int64_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(GenerationSchedule, SequencesTakePagesAsTheyGrow) {
  GenerationSchedule schedule(
      {.max_sequences = 3, .max_length = 384, .max_prefill_tokens = 512, .pages = {{.window = 0, .pages = 4}}});
  add(schedule, {numbered(100), numbered(120), numbered(10)}, 100);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  // The third one waits: both others may yet need a second page.
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 0, 0, 1, 0, 0)));
  for (int i = 0; i < 9; ++i) {
    answer(schedule, pass);
    ASSERT_TRUE(schedule.next(pass));
  }
  EXPECT_THAT(pass.lengths, ElementsAre(108, 128));
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 0, 0, 1, 2, 0)));
  answer(schedule, pass);
  schedule.take(1);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 0, 0, 1, 0, 0)));
  EXPECT_THAT(pass.lengths, ElementsAre(109, 0));
  EXPECT_EQ(schedule.used_pages(0), 2);
  schedule.take(0);
  schedule.take(2);
  EXPECT_EQ(schedule.used_pages(0), 0);
  EXPECT_EQ(schedule.times_put_back(), 0);
}

TEST(GenerationSchedule, TheYoungestGivesItsPagesToTheOldest) {
  GenerationSchedule schedule(
      {.max_sequences = 2, .max_length = 256, .max_prefill_tokens = 64, .pages = {{.window = 0, .pages = 3}}});
  add(schedule, {numbered(100), numbered(120)}, 100);
  GenerationPass pass;
  std::vector<std::pair<int64_t, int64_t>> without_choice;  // passes that only read: tokens, and how often put back
  while (schedule.next(pass)) {
    EXPECT_LE(schedule.used_pages(0), 3);
    if (pass.choices.empty()) without_choice.emplace_back(pass.max_seqlen, schedule.times_put_back());
    answer(schedule, pass);
  }
  // After the first piece of the first one: when that has ended, the second one is read again, its prompt in the same
  // pieces, then its 27 tokens one by one, of which the last is answered.
  ASSERT_EQ(without_choice.size(), 1u + 2 + 26);
  EXPECT_EQ(without_choice[1], std::pair(int64_t{64}, int64_t{1}));
  EXPECT_EQ(without_choice[2], std::pair(int64_t{56}, int64_t{1}));
  EXPECT_EQ(without_choice.back(), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(schedule.times_put_back(), 1);
  EXPECT_EQ(schedule.take(0).ids, std::vector<int32_t>(100, 10));
  EXPECT_EQ(schedule.take(1).ids, std::vector<int32_t>(100, 11));
}

TEST(GenerationSchedule, PagesBeforeTheWindowAreFree) {
  GenerationSchedule schedule(
      {.max_sequences = 1, .max_length = 512, .max_prefill_tokens = 128, .pages = {{.window = 100, .pages = 3}}});
  add(schedule, {numbered(300)}, 212);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 0, 0, 0)));
  ASSERT_TRUE(schedule.next(pass));  // position 128 attends to 29
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 1, 0, 0)));
  ASSERT_TRUE(schedule.next(pass));  // position 256 attends to 157
  EXPECT_THAT(pass.pages, ElementsAre(ElementsAre(0, 1, 0, 0)));
  EXPECT_EQ(schedule.used_pages(0), 2);
  int64_t passes = 0;
  do {
    answer(schedule, pass);
    EXPECT_LE(schedule.used_pages(0), 2);
    ++passes;
  } while (schedule.next(pass));
  EXPECT_EQ(passes, 212);
  EXPECT_EQ(schedule.take(0).ids.size(), 212u);
}

ScheduleLimits sharing(int64_t max_sequences, int64_t pages) {
  ScheduleLimits result = limits(max_sequences, 512, 512);
  result.pages = {{.window = 0, .pages = pages}};
  result.shares_pages = true;
  return result;
}

TEST(GenerationSchedule, ASequenceBeginsAfterThePagesOfOnesThatBeganAlike) {
  GenerationSchedule schedule(sharing(1, 4));
  std::vector<int32_t> longer = numbered(300);
  longer[280] = 7;
  GenerationPass pass;
  // Tokens that a sequence of this variant computes first; it then answers one token.
  const auto computed = [&](const std::vector<int32_t>& prompt, int variant = 0) {
    const size_t number = schedule.add(prompt, {.max_new_tokens = 1, .variant = variant});
    EXPECT_TRUE(schedule.next(pass));
    answer(schedule, pass);
    EXPECT_EQ(schedule.take(number).found + pass.max_seqlen, static_cast<int64_t>(prompt.size()));
    EXPECT_EQ(schedule.used_pages(0), 0);
    return pass.max_seqlen;
  };
  EXPECT_EQ(computed(numbered(300)), 300);
  EXPECT_EQ(computed(longer), 300 - 256);
  EXPECT_THAT(pass.pages[0], ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(pass.lengths, std::vector<int32_t>{256});
  EXPECT_EQ(computed(numbered(256)), 128) << "the last token is computed, so its page is another one";
  EXPECT_EQ(computed(numbered(300), 1), 300) << "another variant";
  EXPECT_EQ(computed(numbered(300), 1), 44);
  schedule.forget_pages();
  EXPECT_EQ(computed(numbered(300), 1), 300) << "after a pass that failed";
}

TEST(GenerationSchedule, PagesOfAFailedPassAreNotFound) {
  GenerationSchedule schedule(sharing(2, 8));
  add(schedule, {numbered(300)}, 9);
  GenerationPass pass;
  ASSERT_TRUE(schedule.next(pass));
  schedule.forget_pages();
  schedule.take(0);
  add(schedule, {numbered(300)}, 9);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_EQ(pass.max_seqlen, 300);
}

TEST(GenerationSchedule, VariantsTakeTurns) {
  GenerationSchedule schedule(limits(3, 16));
  for (const int variant : {2, 0, 2}) schedule.add({1, variant}, {.max_new_tokens = 2, .variant = variant});
  GenerationPass pass;
  std::vector<std::pair<int, std::vector<int32_t>>> passes;
  while (schedule.next(pass)) {
    passes.emplace_back(pass.variant, pass.cu_seqlens);
    answer(schedule, pass);
  }
  using Passes = std::vector<std::pair<int, std::vector<int32_t>>>;
  EXPECT_EQ(passes, (Passes{{2, {0, 2, 2, 4}}, {0, {0, 0, 2, 2}}, {2, {0, 1, 1, 2}}, {0, {0, 0, 1}}}));
}

}  // namespace
}  // namespace hone
