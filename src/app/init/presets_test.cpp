#include "app/init/presets.h"

#include <gtest/gtest.h>

#include "app/config/config_testing.h"
#include "app/config/schema.h"

namespace hone {
namespace {

TEST(Presets, AreTheChoicesOfTheKey) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  EXPECT_EQ(names, key_spec("preset").choices);
}

TEST(Presets, EachValueReachesTheRun) {
  for (const Preset& preset : presets()) {
    for (const std::string method : {"full", "lora"}) {
      const ResolvedConfig config =
          resolved("model: m\ndatasets: d\nfinetuning_type: " + method + "\npreset: " + preset.name);
      for (const PresetValue& value : preset.values) {
        const KeySpec& key = key_spec(value.key);
        EXPECT_EQ(key.load(config.run), method == "lora" ? value.lora : value.full) << preset.name << " " << value.key;
        EXPECT_FALSE(value.why.empty());
      }
    }
  }
}

TEST(Presets, SayWhatTheySet) {
  const ResolvedConfig config = resolved("lora: true\npreset: quick");
  EXPECT_TRUE(has_note(config,
                       "preset quick sets max_steps 100, gradient_accumulation_steps 8, warmup_ratio 0.1, "
                       "save_total_limit 1"));
}

TEST(Presets, YieldToWhateverIsStated) {
  const RunConfig run =
      resolved("preset: balanced\nlr: 3e-3\nwarmup_steps: 7\nglobal_batch_size: 4\nmin_lr: 1e-6", {"weight_decay=0.5"})
          .run;
  EXPECT_EQ(run.schedule.learning_rate, 3e-3);
  EXPECT_EQ(run.schedule.warmup_steps, 7);
  EXPECT_EQ(run.schedule.global_batch_size, 4);
  EXPECT_EQ(run.schedule.min_lr, 1e-6);
  EXPECT_FALSE(run.schedule.min_lr_ratio.has_value());
  EXPECT_EQ(run.optim.weight_decay, 0.5);
  EXPECT_EQ(run.schedule.num_train_epochs, 3.0);
}

TEST(Presets, AStatedLengthOfTheRunWinsInAnyUnit) {
  EXPECT_FALSE(resolved("preset: quick\nepochs: 2").run.schedule.max_steps.has_value());
  EXPECT_EQ(resolved("preset: conservative\nmax_steps: 9").run.schedule.num_train_epochs,
            RunConfig().schedule.num_train_epochs);
}

TEST(Presets, DoNotFightTheValidationThatIsStated) {
  const RunConfig own = resolved("preset: full\neval_datasets: e").run;
  EXPECT_EQ(own.data.val_split, 0);
  EXPECT_EQ(resolved("preset: full").run.data.val_split, 0.05);
  EXPECT_TRUE(resolved("preset: full").run.eval.load_best_model_at_end);
  EXPECT_EQ(refusal("preset: full\nsave_strategy: no"), "");
  EXPECT_EQ(refusal("preset: memory\noptimizer_in_backward: true\nmax_grad_norm: 0"), "");
}

TEST(Presets, AreUnknownByAnyOtherName) {
  EXPECT_NE(refusal("preset: fast").find("expected one of quick, full"), std::string::npos);
}

}  // namespace
}  // namespace hone
