#include "app/config/unknown_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "app/config/config_testing.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kAxolotl =
    "base_model: m\nmodel_type: MixtralForCausalLM\nstrict: false\ndatasets: [a.jsonl]\nlocal_rank:\n"
    "sequence_len: 512\npad_to_sequence_len: true\nspecial_tokens:\nload_in_4bit: true\n";

TEST(UnknownKeys, AreNamedAllAtOnceBeforeAnyValueIsRead) {
  const std::string what = refusal(kAxolotl);
  EXPECT_THAT(what, StartsWith("3 unknown keys: 'model_type' (run.yaml:2), 'strict' (run.yaml:3), "
                               "'pad_to_sequence_len' (run.yaml:7) | run.yaml:2 |"));
  EXPECT_THAT(what, HasSubstr("this looks like Axolotl: hone convert-config run.yaml"));
  EXPECT_THAT(refusal("learning_rat: 1\nsed: 2\n", {"packin=true"}),
              AllOf(StartsWith("3 unknown keys:"), HasSubstr("Did you mean 'learning_rate'"),
                    HasSubstr("'packin' (command line: packin=true)"), Not(HasSubstr("looks like"))));
  EXPECT_THAT(refusal("model_name_or_path: m\nstage: sft\ndataset: a\ndataset_dir: d\ncutoff_len: 8\n"
                      "plot_loss: true\nlora_target: all\n"),
              HasSubstr("this looks like LLaMA-Factory: hone convert-config run.yaml"));
}

TEST(UnknownKeys, OfOtherToolsSayNothingWhereTheyAreEmpty) {
  EXPECT_EQ(refusal("seed: 1\nlocal_rank:\nxformers_attention:\ngptq_groupsize:\nfsdp_config:\n"), "");
  EXPECT_THAT(refusal("seed: 1\nlerning_rate:\n"), StartsWith("unknown key 'lerning_rate'. Did you mean"));
}

TEST(UnknownKeys, AScriptIsPointedToTheTranslation) {
  EXPECT_THAT(refusal("seed: 1\nbatch_size: 8\nlerning_rate: 2\n"), StartsWith("'batch_size' is ambiguous"));
  try {
    (void)load_config("trl.sh", {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.fix(), HasSubstr("hone convert-config trl.sh"));
  }
}

TEST(Environment, NamesThatAreNotReadAreToldOfAtTheStart) {
  unsetenv("KT_SFT_PROFILE");
  setenv("ACCELERATE_KT_BACKEND", "AMXINT8", 1);
  setenv("SFT_TRACE_PATH", "t.json", 1);
  const ResolvedConfig config = load_config("", {"seed=1"});
  unsetenv("ACCELERATE_KT_BACKEND");
  unsetenv("SFT_TRACE_PATH");
  EXPECT_THAT(config.notes,
              Contains(StartsWith("not read from the environment: ACCELERATE_KT_BACKEND, SFT_TRACE_PATH;")));
  EXPECT_THAT(load_config("", {"seed=1"}).notes, Not(Contains(HasSubstr("not read from the environment"))));
}

}  // namespace
}  // namespace hone
