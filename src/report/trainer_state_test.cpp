#include "report/trainer_state.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/error.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

TEST(TrainerState, HasTheFieldsThatHuggingFaceReads) {
  const TestFolder folder;
  TrainerState state{.global_step = 4, .max_steps = 10, .epoch = 0.4, .num_train_epochs = 0.5};
  state.log_history = {Json{{"step", 4}, {"loss", 1.5}, {"epoch", 0.4}}};
  state.best = BestModel{.metric = 1.25, .step = 3, .checkpoint = "out/checkpoint-3"};
  write_trainer_state(state, folder.path());
  const Json json = Json::parse(read_text(folder / "trainer_state.json"));
  EXPECT_EQ(json["global_step"], 4);
  EXPECT_EQ(json["max_steps"], 10);
  EXPECT_EQ(json["num_train_epochs"], 1) << "a fraction of an epoch counts as one there";
  EXPECT_EQ(json["epoch"], 0.4);
  EXPECT_EQ(json["best_metric"], 1.25);
  EXPECT_EQ(json["best_global_step"], 3);
  EXPECT_EQ(json["best_model_checkpoint"], "out/checkpoint-3");
  EXPECT_EQ(json["log_history"][0]["loss"], 1.5);
  for (const char* field : {"is_local_process_zero", "is_world_process_zero", "trial_name", "total_flos"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
}

TEST(TrainerState, WithoutAnEvaluationThereIsNoBest) {
  const Json json = to_json(TrainerState{});
  EXPECT_TRUE(json["best_metric"].is_null());
  EXPECT_TRUE(json["best_model_checkpoint"].is_null());
  EXPECT_TRUE(
      to_json(TrainerState{.best = BestModel{.metric = std::numeric_limits<double>::quiet_NaN()}})["best_metric"]
          .is_null())
      << "NaN is not JSON";
}

TEST(TrainerState, AFolderThatIsMissingIsTheUsersError) {
  const TestFolder folder;
  write_text(folder / "file", "");
  EXPECT_THROW(write_trainer_state(TrainerState{}, folder / "file"), UserError);
}

}  // namespace
}  // namespace hone
