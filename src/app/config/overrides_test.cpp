#include "app/config/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/config/config_testing.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ConfigNode::Kind;

TEST(Overrides, AreReadInAllSpellings) {
  const ConfigNode root = parse_overrides({"lr=1e-4", "--max-steps", "-1", "--seed=3", "--packing", "--datasets",
                                           "[a, {path: b}]", "training.epochs=2", "tpl={{ x }}", "empty="});
  ASSERT_EQ(root.members.size(), 8u);
  EXPECT_EQ(root.find("lr")->text, "1e-4");
  EXPECT_EQ(root.find("lr")->where, "command line: lr=1e-4");
  EXPECT_EQ(root.find("max-steps")->text, "-1");
  EXPECT_EQ(root.find("max-steps")->where, "command line: --max-steps -1");
  EXPECT_EQ(root.find("seed")->text, "3");
  EXPECT_EQ(root.find("packing")->text, "true");
  EXPECT_EQ(root.find("datasets")->items[1].find("path")->text, "b");
  EXPECT_EQ(root.find("training")->find("epochs")->text, "2");
  EXPECT_EQ(root.find("tpl")->text, "{{ x }}");
  EXPECT_EQ(root.find("empty")->kind, Kind::kNull);
}

TEST(Overrides, RefuseWhatIsNone) {
  EXPECT_THROW(parse_overrides({"word"}), UserError);
  EXPECT_THROW(parse_overrides({"=1"}), UserError);
  EXPECT_THROW(parse_overrides({"a..b=1"}), UserError);
  EXPECT_THROW(parse_overrides({"a=[1"}), UserError);
}

TEST(Overrides, ASwitchOrAKeyWithoutEffectNeverTakesTheNextAssignment) {
  // Switches, those of other tools that mean a key that takes text, keys without effect, unknown ones.
  for (const char* flag :
       {"--packing", "--use_cpu", "--use_lora", "--enable_thinking", "--use_tensorboard", "--load_best", "--bf16",
        "--torch_compile", "--use_liger_kernel", "--attn_implementation", "--training.tf32", "--no_such_key"}) {
    const ConfigNode root = parse_overrides({flag, "learning_rate=5e-3", "--max_steps=2"});
    ASSERT_TRUE(root.find("learning_rate")) << flag;
    EXPECT_EQ(root.find("learning_rate")->text, "5e-3") << flag;
    EXPECT_EQ(root.members.size(), 3u) << flag;
  }
  const RunConfig run =
      resolved("", {"--torch_compile", "learning_rate=5e-3", "--use_liger_kernel", "max_steps=2"}).run;
  EXPECT_EQ(run.schedule.learning_rate, 5e-3);
  EXPECT_EQ(run.schedule.max_steps, 2);
}

TEST(Overrides, AKeyWithANumberNeverTakesTheNextAssignment) {
  EXPECT_THAT(refusal("", {"--learning_rate", "max_steps=2"}), HasSubstr("learning_rate is 'true': expected a number"));
}

TEST(Overrides, AKeyThatTakesTextTakesTheNextWord) {
  const RunConfig run = resolved("", {"--output_dir", "out/lr=1e-3", "--run_name", "a=b", "--optim_args",
                                      "clip_threshold=2", "--optim", "adafactor"})
                            .run;
  EXPECT_EQ(run.report.output_dir, "out/lr=1e-3");
  EXPECT_EQ(run.report.run_name, "a=b");
  EXPECT_EQ(run.optim.args["clip_threshold"], 2);
  EXPECT_THAT(refusal("", {"--output_dir", "--packing"}),
              AllOf(HasSubstr("--output_dir has no value"), HasSubstr("write --output_dir=VALUE")));
  EXPECT_EQ(resolved("", {"--resume"}).run.checkpoint.resume_from_checkpoint, "auto");
}

TEST(Overrides, ASwitchTakesTrueAndFalse) {
  EXPECT_FALSE(resolved("", {"--packing", "false", "max_steps=2"}).run.data.packing);
  EXPECT_TRUE(resolved("", {"--packing", "true"}).run.data.packing);
  EXPECT_EQ(resolved("", {"--use_cpu", "true"}).run.machine.device, "cpu");
  EXPECT_THAT(refusal("", {"--packing", "words"}), HasSubstr("'words' is not an override"));
  EXPECT_FALSE(takes_word("torch_compile", "run.yaml"));
  EXPECT_TRUE(takes_word("torch_compile_mode", "max-autotune"));
}

TEST(Overrides, TwoNamesOfOneKeyThatDifferAreAnErrorNamingBoth) {
  EXPECT_EQ(refusal("", {"lr=1e-3", "learning_rate=2e-3"}),
            "learning_rate is stated twice with different values: 'lr: 1e-3' (command line: lr=1e-3) and "
            "'learning_rate: 2e-3' (command line: learning_rate=2e-3) | command line: learning_rate=2e-3 | keep one of "
            "them");
  EXPECT_THAT(refusal("", {"deepspeed_config=zero1", "fsdp=no_shard"}),
              AllOf(HasSubstr("deepspeed_config=zero1"), HasSubstr("fsdp=no_shard")));
  EXPECT_THAT(refusal("", {"enable_thinking=true", "chat_template_kwargs={enable_thinking: false}"}),
              HasSubstr("stated twice"));
  EXPECT_EQ(refusal("", {"lr=1e-3", "learning_rate=0.001"}), "");
  // The same name twice: the last wins.
  EXPECT_EQ(resolved("", {"lr=1e-3", "--lr", "2e-3"}).run.schedule.learning_rate, 2e-3);
  EXPECT_EQ(resolved("", {"enable_thinking=true", "--enable-thinking=false"}).run.data.chat_template_kwargs,
            Json({{"enable_thinking", false}}));
}

TEST(Overrides, AnOptionOfAVerbCountsInsteadOfThem) {
  EXPECT_THAT(without_keys_of({"model=a", "--max_steps", "3", "--base-model", "b", "--packing", "model.name=c", "x"},
                              {"model_name_or_path=d"}),
              ElementsAre("--max_steps", "3", "--packing", "x"));
}

TEST(Overrides, TheFileIsNotReadForAKeyThatTheCommandLineStates) {
  const auto note = [](const ResolvedConfig& config) {
    return config.notes.empty() ? std::string() : config.notes.back();
  };
  // Two keys that decide one thing: the command line wins, and says so.
  const ResolvedConfig sharded = resolved("deepspeed_config: nowhere/zero3.json\n", {"zero_stage=1"});
  EXPECT_EQ(sharded.run.machine.zero_stage, "1");
  EXPECT_EQ(note(sharded),
            "deepspeed_config: nowhere/zero3.json (run.yaml:1) is replaced by command line: zero_stage=1");
  EXPECT_EQ(resolved("deepspeed_config: nowhere/zero3.json", {"fsdp=no_shard"}).run.machine.zero_stage, "0");
  const ResolvedConfig steps = resolved("num_train_epochs: 3\nmax_steps: 100\n", {"num_train_epochs=1"});
  EXPECT_EQ(steps.run.schedule.max_steps, std::nullopt) << "it would win over the epochs that were asked for";
  EXPECT_EQ(note(steps), "max_steps: 100 (run.yaml:2) is replaced by command line: num_train_epochs=1");
  EXPECT_EQ(resolved("num_train_epochs: 2", {"max_steps=-1"}).run.schedule.num_train_epochs, 2);
  EXPECT_EQ(resolved("saves_per_epoch: 2", {"save_steps=7"}).run.checkpoint.save_steps, 7);
  // What this version does not run, or does not even understand, is taken back.
  EXPECT_EQ(refusal("load_in_4bit: true", {"load_in_4bit=false"}), "");
  EXPECT_EQ(refusal("lr: fast", {"learning_rate=1"}), "");
  EXPECT_EQ(resolved("use_cpu: true", {"use_cpu=false"}).run.machine.device, "auto");
  EXPECT_EQ(resolved("lr: 0.5", {"learning_rate=null"}).run.schedule.learning_rate, 1e-5);
  EXPECT_EQ(resolved("use_auxiliary_loss: false\nauxiliary_loss_weight: 0.5", {"use_auxiliary_loss=true"})
                .run.model.router_aux_loss_coef,
            0.5);
}

}  // namespace
}  // namespace hone
