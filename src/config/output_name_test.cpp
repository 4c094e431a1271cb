#include "config/output_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_testing.h"
#include "config/resolved_yaml.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string folder_of(const std::string& output_dir, const std::string& more = "",
                      const std::vector<std::string>& overrides = {}) {
  return resolved("output_dir: \"" + output_dir + "\"\n" + more, overrides).run.report.output_dir;
}

TEST(OutputName, HasTheResolvedValuesOfKeys) {
  const std::string run = "learning_rate: 2.0e-4\nweight_decay: 0.01\n";
  EXPECT_EQ(folder_of("out/{learning_rate}-{weight_decay}", run), "out/0.0002-0.01");
  EXPECT_EQ(folder_of("out/{lr}", run, {"learning_rate=3e-5"}), "out/3e-05") << "an alias, and an override";
  EXPECT_EQ(folder_of("{finetuning_type}-{lora_r}-{packing}/x", "lora_r: 8\n"), "lora-8-true/x");
  EXPECT_EQ(folder_of("out/{adam_beta2}", ""), "out/0.999") << "a default";
  EXPECT_EQ(folder_of("out/{generation.max_new_tokens}", ""), "out/256");
  EXPECT_EQ(resolved("output_dir: 'out/{seed}'\nseed: 3").run.report.run_name, "3");
}

TEST(OutputName, IsTheSameOnResumeAndFromTheResolvedFile) {
  const std::string yaml = "output_dir: 'out/{learning_rate}'\nlearning_rate: 1.0e-4\n";
  const RunConfig run = resolved(yaml).run;
  EXPECT_EQ(resolved(yaml, {"resume=auto"}).run.report.output_dir, run.report.output_dir);
  EXPECT_EQ(resolved(resolved_yaml(run), {"learning_rate=2e-4"}).run.report.output_dir, run.report.output_dir);
}

TEST(OutputName, DoubledBracesAreBraces) {
  const std::string yaml = "output_dir: 'out/{{a}}'\n";
  const RunConfig run = resolved(yaml).run;
  EXPECT_EQ(run.report.output_dir, "out/{a}");
  EXPECT_EQ(resolved(resolved_yaml(run)).run.report.output_dir, "out/{a}");
  const std::string variable = "output_dir: 'out/$${NAME}/{seed}'\n";
  EXPECT_EQ(resolved(variable).run.report.output_dir, "out/${NAME}/42") << "of a shell, not a key";
  EXPECT_EQ(resolved(resolved_yaml(resolved(variable).run)).run.report.output_dir, "out/${NAME}/42");
  EXPECT_THAT(refusal("output_dir: 'out/{a'"), HasSubstr("a single brace"));
  EXPECT_THAT(refusal("output_dir: 'out/a}'"), HasSubstr("a single brace"));
}

TEST(OutputName, RefusesWhatIsNoPartOfAName) {
  const auto refuses = [](const std::string& name, const std::string& why, const std::string& more = "") {
    EXPECT_THAT(refusal("output_dir: 'out/{" + name + "}'\n" + more), HasSubstr(why)) << name;
  };
  refuses("learning_rat", "Did you mean 'learning_rate'?");
  refuses("lora_target_modules", "no single value");
  refuses("datasets", "no single value");
  refuses("model_name_or_path", "cannot be a part of a folder's name", "model_name_or_path: Qwen/Qwen3-8B\n");
  refuses("run_name", "is not the same when the run is resumed, or follows from output_dir");
  refuses("resume", "is not the same when the run is resumed");
  refuses("output_dir", "follows from output_dir");
  refuses("max_steps", "has no value");
  refuses("gradient_accumulation_steps", "depends on the number of ranks", "global_batch_size: 8\n");
  EXPECT_THAT(refusal("output_dir: 'out/{gradient_accumulation_steps}'\ngradient_accumulation_steps: 4"), IsEmpty());
}

}  // namespace
}  // namespace hone
