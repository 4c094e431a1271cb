#include "app/launch/slurm_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <cstdlib>

#include "core/error.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LaunchPlan plan() {
  LaunchPlan plan;
  plan.program = "/opt/hone";
  plan.command = {"train", "my run.yaml"};
  plan.directory = "/data/runs";
  plan.ranks_per_host = 4;
  return plan;
}

TEST(SlurmScript, RunsOneModelOnAllNodes) {
  SlurmOptions options;
  options.nodes = 2;
  options.memory = "500G";
  options.time = "48:00:00";
  options.partition = "gpu";
  options.cpus_per_rank = 16;
  const std::string script = slurm_script(plan(), options);
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4\n", "#SBATCH --gpus-per-node=4\n", "#SBATCH --mem=500G\n",
        "#SBATCH --time=48:00:00\n", "#SBATCH --partition=gpu\n", "#SBATCH --output=logs/slurm_%j.log\n",
        "cd /data/runs\n",
        "srun --kill-on-bad-exit=1 --cpus-per-task=16 --output=logs/rank_%t.log /opt/hone train 'my run.yaml'\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("--array")));
  EXPECT_THAT(script, Not(HasSubstr("--account"))) << "not stated";
  EXPECT_EQ(script.find("#!/bin/bash\n#SBATCH"), 0u) << "sbatch reads its lines before the first command";
}

TEST(SlurmScript, AsksForAnArrayOfIndependentModels) {
  LaunchPlan models = plan();
  models.independent = {.count = 4, .shards = "data", .output_dir = "outputs"};
  SlurmOptions options;
  options.gpus_per_node = 0;
  const std::string script = slurm_script(models, options);
  for (const char* line : {"#SBATCH --array=0-3\n", "#SBATCH --nodes=1\n", "#SBATCH --output=logs/node_%a.log\n",
                           "MASTER_PORT=$((29500 + node))\n", "shard=$(ls data/training_data_node_\"$node\".*)\n",
                           "datasets=\"$shard\" output_dir=outputs/node_\"$node\"\n", "4 independent models"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("--gpus"))) << "none are asked for";
  EXPECT_THAT(slurm_explanation(models, options),
              HasSubstr("hone prepare datasets=FILE --split-nodes 4 --output data"));
}

TEST(SlurmScript, MakesTheSecretOfTheRunWhenTheJobRuns) {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "hone-slurm-XXXXXX").string();
  const fs::path folder = ::mkdtemp(name.data());
  LaunchPlan here = plan();
  here.directory = folder;
  std::ofstream(folder / "job") << slurm_script(here, {});
  std::ofstream(folder / "srun") << "#!/bin/sh\necho \"$HONE_RUN_SECRET\" >> secrets\necho \"$@\" >> words\n";
  fs::permissions(folder / "srun", fs::perms::owner_all);
  const std::string run = "cd '" + folder.string() + "' && PATH=.:$PATH ";
  for (const std::string stated : {"", "", "HONE_RUN_SECRET=0123456789abcdef "}) {
    EXPECT_EQ(std::system((run + stated + "bash job").c_str()), 0);
  }
  std::ifstream secrets(folder / "secrets"), words(folder / "words");
  const std::string said((std::istreambuf_iterator<char>(words)), {});
  std::string first, second, third;
  secrets >> first >> second >> third;
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(second.size(), 64u);
  EXPECT_NE(first, second);
  EXPECT_EQ(third, "0123456789abcdef");
  EXPECT_THAT(said, Not(HasSubstr(first)));
  fs::remove_all(folder);
}

TEST(SlurmScript, RefusesValuesThatWouldNotBeOne) {
  SlurmOptions options;
  options.time = "1:00 #SBATCH";
  EXPECT_THROW(slurm_script(plan(), options), UserError);
  options.time = "1:00";
  options.nodes = 0;
  EXPECT_THROW(slurm_script(plan(), options), UserError);
}

}  // namespace
}  // namespace hone
