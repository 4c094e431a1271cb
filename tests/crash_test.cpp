// Runs that are killed, and runs whose disk is full: what was saved stays, and resuming changes nothing.
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "core/philox.h"
#include "device_main.h"
#include "program.h"
#include "small_disk.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSteps = 24;

std::vector<std::string> arguments(const Folder& folder, const fs::path& output,
                                   const std::vector<std::string>& more = {}) {
  std::vector<std::string> options = {"max_steps=" + std::to_string(kSteps),
                                      "save_steps=2",
                                      "save_total_limit=2",
                                      "eval_steps=6",
                                      "val_split=4",
                                      "resume=auto"};
  options.insert(options.end(), more.begin(), more.end());
  return train_arguments((folder / "model").string(), (folder / "data.jsonl").string(), output, options);
}

/// Options of runs of different lengths: each would evaluate at its own end.
const std::string kNoEvaluation = "eval_strategy=no";

void make_inputs(const Folder& folder) {
  make_model(folder);
  folder.write("data.jsonl", progressions(40));
}

/// Every folder with the name of a checkpoint is one, whole.
void expect_whole_checkpoints(const fs::path& output) {
  if (!fs::exists(output)) return;
  for (const std::string& name : names_in(output)) {
    if (!name.starts_with("checkpoint-") || name.find('.') != std::string::npos) continue;
    for (const char* file : {"model.safetensors", "training_state.safetensors"}) {
      EXPECT_NO_THROW(SafetensorsFile(output / name / file)) << name;
    }
    for (const char* file : {"training_state.json", "trainer_state.json", "config.json"}) {
      EXPECT_TRUE(Json::parse(read_file(output / name / file), nullptr, false).is_object()) << name << "/" << file;
    }
  }
}

/// What training has to repeat bit for bit: times and memory aside.
std::vector<Json> losses(const fs::path& output) {
  std::vector<Json> kept;
  for (const Json& line : read_json_lines(output / "metrics.jsonl")) {
    Json values = Json::object();
    for (const char* name : {"step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens", "eval_loss"}) {
      if (line.contains(name)) values[name] = line[name];
    }
    kept.push_back(values);
  }
  return kept;
}

void expect_same_run(const fs::path& a, const fs::path& b) {
  const std::string last = "checkpoint-" + std::to_string(kSteps);
  for (const std::string& name : {std::string("model.safetensors"), last + "/model.safetensors",
                                  last + "/training_state.safetensors", last + "/training_state.json"}) {
    EXPECT_TRUE(read_file(a / name) == read_file(b / name)) << name << " differs";
  }
  EXPECT_EQ(losses(a), losses(b));
}

TEST(Crash, ARunKilledAtRandomMomentsEndsAsIfItHadNotBeen) {
  const Folder folder;
  make_inputs(folder);
  const Clock::time_point begin = Clock::now();
  ASSERT_EQ(run_hone(arguments(folder, folder / "whole")).code, 0);
  const auto whole_time = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t seed = test_run().seed == 0 ? now % 1'000'000 + 1 : test_run().seed;
  std::printf("%d moments within %lld ms; --seed %llu\n", test_run().moments,
              static_cast<long long>(whole_time.count()), static_cast<unsigned long long>(seed));
  PhiloxSequence random(seed);
  int killed = 0, runs = 0;
  for (; killed < test_run().moments; ++runs) {
    const fs::path output = folder / ("run" + std::to_string(runs));
    // Until it ends before it is killed, which it does: every start gets a step or a checkpoint further, or is luckier.
    for (bool ended = false; !ended;) {
      Process process(arguments(folder, output));
      std::this_thread::sleep_for(milliseconds(random.below(static_cast<uint64_t>(whole_time.count()) + 1)));
      if (killed < test_run().moments) process.send(SIGKILL);
      const Outcome outcome = process.wait();
      ASSERT_TRUE(outcome.code == 0 || outcome.code == 128 + SIGKILL) << outcome.code << outcome.err;
      expect_whole_checkpoints(output);
      ended = outcome.code == 0;
      if (!ended) ++killed;
    }
    expect_same_run(folder / "whole", output);
    for (const std::string& name : names_in(output)) {
      EXPECT_TRUE(name.find(".tmp") == std::string::npos && name.find(".deleted") == std::string::npos) << name;
    }
    fs::remove_all(output);
  }
  std::printf("%d kills of %d runs\n", killed, runs);
}

/// While it lives, programs that are started cannot make a file longer than `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Crash, ACheckpointThatCannotBeWrittenLeavesTheLastOneAndResumes) {
  const Folder folder;
  make_inputs(folder);
  const fs::path output = folder / "out";
  ASSERT_EQ(run_hone(arguments(folder, folder / "whole", {kNoEvaluation})).code, 0);
  ASSERT_EQ(run_hone(arguments(folder, output, {kNoEvaluation, "max_steps=4"})).code, 0);
  const std::string before = read_file(output / "checkpoint-4/model.safetensors");
  {
    const FileSizeLimit limit(before.size() / 2);
    const Outcome outcome = run_hone(arguments(folder, output, {kNoEvaluation}));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find("the file cannot be written: File too large"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("nothing that was saved before is lost"), std::string::npos) << outcome.err;
  }
  EXPECT_TRUE(read_file(output / "checkpoint-4/model.safetensors") == before);
  EXPECT_FALSE(fs::exists(output / "checkpoint-6"));
  EXPECT_FALSE(fs::exists(output / "checkpoint-6.tmp"));
  expect_whole_checkpoints(output);
  ASSERT_EQ(run_hone(arguments(folder, output, {kNoEvaluation})).code, 0);
  expect_same_run(folder / "whole", output);
}

TEST(Crash, AFullDiskKeepsTheLastCheckpointWhereverItIsFull) {
  const Folder folder;
  const SmallDisk disk(folder / "disk", "size=16m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  make_inputs(folder);
  const fs::path output = folder / "disk/out";
  ASSERT_EQ(run_hone(arguments(folder, folder / "whole", {kNoEvaluation})).code, 0);
  ASSERT_EQ(run_hone(arguments(folder, output, {kNoEvaluation, "max_steps=4"})).code, 0);
  // From a disk without a byte, over one that is full in the weights and in the optimizer's state, to one with room
  // for one more checkpoint or two.
  for (const uintmax_t kilobytes : {0, 4, 12, 40, 100, 200, 400, 600}) {
    disk.fill(kilobytes << 10);
    const Outcome outcome = run_hone(arguments(folder, output, {kNoEvaluation}));
    disk.empty();
    ASSERT_TRUE(outcome.code == 2 || outcome.code == 0) << kilobytes << " kB: " << outcome.code << outcome.err;
    if (outcome.code == 2) {
      EXPECT_NE(outcome.err.find("fix: "), std::string::npos) << outcome.err;
      EXPECT_EQ(outcome.err.find("internal error"), std::string::npos) << outcome.err;
    }
    expect_whole_checkpoints(output);
  }
  ASSERT_EQ(run_hone(arguments(folder, output, {kNoEvaluation})).code, 0);
  expect_same_run(folder / "whole", output);
}

}  // namespace
}  // namespace hone
