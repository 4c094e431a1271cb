#include "infer/generation_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
