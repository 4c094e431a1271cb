// Tests of what hone estimate says of spread experts.
#include "app/estimate/spread_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hone {
namespace {

using ::testing::HasSubstr;

class SpreadAdvice : public ::testing::Test {
 protected:
  SpreadAdvice() {
    run_.machine.ranks = 4;
    run_.model.finetuning_type = FinetuningType::kFull;
    run_.schedule.per_device_train_batch_size = 1;
    run_.data.max_length = 4096;
    decoder_.layers.resize(2);
    decoder_.layers[1].moe = true;
    decoder_.moe.num_experts = 8;
  }

  RunConfig run_;
  DecoderConfig decoder_;
};

TEST_F(SpreadAdvice, IsToSpreadTrainedExpertsForFewTokens) {
  EXPECT_THAT(spread_advice(run_, decoder_), HasSubstr("expert_parallel_size: 2 is faster"));
  run_.data.max_length = 8193;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.machine.expert_parallel_size = 2;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.data.max_length = 16384;
  EXPECT_THAT(spread_advice(run_, decoder_), HasSubstr("as fast without"));
}

TEST_F(SpreadAdvice, IsToShardFrozenExperts) {
  run_.model.finetuning_type = FinetuningType::kLora;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.machine.expert_parallel_size = 4;
  EXPECT_THAT(spread_advice(run_, decoder_), HasSubstr("zero_stage: 3 is faster"));
}

TEST_F(SpreadAdvice, IsNoneWhereExpertsCannotBeSpread) {
  run_.machine.ranks = 3;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.machine.ranks = 1;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.machine.ranks = 4;
  run_.machine.cpu_offload = {OffloadPart::kParams};
  EXPECT_EQ(spread_advice(run_, decoder_), "");
  run_.machine.cpu_offload = {};
  run_.optim.name = OptimizerName::kAdafactor;
  EXPECT_EQ(spread_advice(run_, decoder_), "");
}

}  // namespace
}  // namespace hone
