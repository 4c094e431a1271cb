#include "infer/generation_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hone {
namespace {

using testing::ElementsAre;
using Prompts = std::vector<std::vector<int32_t>>;

ScheduleLimits limits(int64_t max_sequences, int64_t max_prefill_tokens, int64_t max_new_tokens) {
  return {.max_sequences = max_sequences,
          .max_length = 100,
          .max_prefill_tokens = max_prefill_tokens,
          .max_new_tokens = max_new_tokens,
          .stop_ids = {99}};
}

/// Answers every choice of a pass with 10 + the sequence's number.
void answer(GenerationSchedule& schedule, const GenerationPass& pass) {
  for (const auto& choice : pass.choices) schedule.accept(choice.sequence, 10 + static_cast<int32_t>(choice.sequence));
}

TEST(GenerationSchedule, ReadsPromptsPackedAndThenOneTokenEach) {
  const Prompts prompts = {{1, 2, 3}, {4, 5}};
  GenerationSchedule schedule(prompts, limits(4, 16, 2));
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
  const auto results = schedule.take_results();
  EXPECT_THAT(results[1].ids, ElementsAre(11, 11));
  EXPECT_EQ(results[1].finish, FinishReason::kLength);
}

TEST(GenerationSchedule, AnEndedSequenceLeavesItsSlotToTheNextPrompt) {
  const Prompts prompts = {{1}, {2}, {3}};
  GenerationSchedule schedule(prompts, limits(2, 16, 5));
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
  EXPECT_THAT(pass.cu_seqlens, ElementsAre(0, 1));  // the second slot is gone
  schedule.accept(2, 99);
  EXPECT_FALSE(schedule.next(pass));
  const auto results = schedule.take_results();
  EXPECT_EQ(results[0].finish, FinishReason::kStop);
  EXPECT_THAT(results[1].ids, ElementsAre(50, 99));
  EXPECT_EQ(results[1].answer().size(), 1u);
}

TEST(GenerationSchedule, CutsLongPromptsAtTheSamePlacesWhateverRunsBesideThem) {
  const Prompts prompts = {{1}, {1, 2, 3, 4, 5, 6, 7}, {9, 8}};
  GenerationSchedule schedule(prompts, limits(3, 3, 9));
  GenerationPass pass;
  // The piece of three does not fit beside the first prompt, the short prompt does.
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(1, 9, 8));
  EXPECT_THAT(pass.cu_seqlens, ElementsAre(0, 1, 1, 3));
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 1, 2, 3, 12));
  EXPECT_EQ(pass.choices.size(), 2u);  // none for a prompt in the middle
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 4, 5, 6, 12));
  answer(schedule, pass);
  ASSERT_TRUE(schedule.next(pass));
  EXPECT_THAT(pass.input_ids, ElementsAre(10, 7, 12));
  EXPECT_EQ(pass.choices.size(), 3u);
}

TEST(GenerationSchedule, SequencesEndAtTheLengthOfTheCache) {
  const Prompts prompts = {{1, 2, 3}};
  ScheduleLimits five = limits(1, 16, 50);
  five.max_length = 5;
  GenerationSchedule schedule(prompts, five);
  GenerationPass pass;
  while (schedule.next(pass)) answer(schedule, pass);
  EXPECT_THAT(schedule.take_results()[0].ids, ElementsAre(10, 10));
}

TEST(GenerationSchedule, RemembersDistinctTokensOfPromptAndAnswer) {
  const Prompts prompts = {{7, 3, 7}};
  ScheduleLimits tracked = limits(1, 16, 50);
  tracked.track_seen = true;
  GenerationSchedule schedule(prompts, tracked);
  GenerationPass pass;
  for (const int32_t id : {5, 3, 9}) {
    ASSERT_TRUE(schedule.next(pass));
    schedule.accept(0, id);
  }
  EXPECT_THAT(schedule.seen(0), ElementsAre(3, 5, 7, 9));
}

TEST(GenerationSchedule, WithoutPromptsThereIsNothingToDo) {
  GenerationSchedule schedule({}, limits(2, 16, 1));
  GenerationPass pass;
  EXPECT_FALSE(schedule.next(pass));
  EXPECT_TRUE(schedule.take_results().empty());
}

}  // namespace
}  // namespace hone
