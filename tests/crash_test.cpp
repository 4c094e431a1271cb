// Tests of killed runs and full disks: checkpoints remain valid, and resuming gives the same results.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <thread>

#include "core/base/philox.h"
#include "core/files/folder_lock.h"
#include "device_main.h"
#include "program.h"
#include "shell.h"
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

/// For runs of different lengths, which would evaluate at different steps.
const std::string kNoEvaluation = "eval_strategy=no";

void make_inputs(const Folder& folder) {
  make_model(folder);
  folder.write("data.jsonl", progressions(40));
}

/// The method of training and the number of ranks.
struct Kind {
  const char* name;
  std::vector<std::string> options;
  bool ranks = false;  ///< two ranks with sharded optimizer state

  std::vector<std::string> arguments(const Folder& folder, const fs::path& output) const {
    std::vector<std::string> all = hone::arguments(folder, output, options);
    if (!ranks) return all;
    std::erase_if(all,
                  [](const std::string& argument) { return argument.starts_with("gradient_accumulation_steps="); });
    const std::vector<std::string> launch = {"launch", "-n", "2", "--device", "cpu"};
    all.insert(all.begin(), launch.begin(), launch.end());
    return all;
  }
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

/// Whether a save was in progress: a temporary folder exists.
bool is_saving(const fs::path& output) {
  if (!fs::exists(output)) return false;
  const std::vector<std::string> names = names_in(output);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.find(".hone-") != std::string::npos; });
}

/// Checks that every folder with the name of a checkpoint is complete, once nobody writes: ranks outlive a launcher
/// that is killed for a moment, in which they may remove one.
void expect_whole_checkpoints(const fs::path& output) {
  constexpr std::chrono::seconds kPatience{10};
  if (!fs::exists(output)) return;
  const auto lock = FolderLock::take_within(output, kPatience);
  for (const std::string& name : names_in(output)) {
    if (!name.starts_with("checkpoint-") || name.find('.') != std::string::npos) continue;
    for (const std::string& file : names_in(output / name)) {
      if (file.ends_with(".safetensors")) {
        EXPECT_NO_THROW(SafetensorsFile(output / name / file)) << name;
      }
    }
    for (const char* file : {"training_state.json", "trainer_state.json", "hone_manifest.json"}) {
      EXPECT_TRUE(Json::parse(read_file(output / name / file), nullptr, false).is_object()) << name << "/" << file;
    }
  }
}

/// The metrics that must be bit-identical: all but times and memory.
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
  for (const fs::path& folder : {fs::path("."), fs::path(last)}) {
    for (const std::string& name : names_in(a / folder)) {
      const bool compared = name.ends_with(".safetensors") || name == "training_state.json" ||
                            name.ends_with("index.json") || name == "generations.jsonl";
      if (compared) {
        EXPECT_TRUE(read_file(a / folder / name) == read_file(b / folder / name)) << folder / name << " differs";
      }
    }
  }
  EXPECT_EQ(losses(a), losses(b));
}

class Killed : public ::testing::TestWithParam<Kind> {};

TEST_P(Killed, ARunEndsAsIfItHadNotBeen) {
  const Folder folder;
  make_inputs(folder);
  const Clock::time_point begin = Clock::now();
  const Outcome uninterrupted = run_hone(GetParam().arguments(folder, folder / "whole"));
  ASSERT_EQ(uninterrupted.code, 0) << uninterrupted.err;
  const auto whole_time = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t seed = test_run().seed == 0 ? now % 1'000'000 + 1 : test_run().seed;
  std::printf("%d moments within %lld ms; --seed %llu\n", test_run().moments,
              static_cast<long long>(whole_time.count()), static_cast<unsigned long long>(seed));
  PhiloxSequence random(seed);
  int killed = 0, saving = 0, runs = 0;
  for (; killed < test_run().moments; ++runs) {
    const fs::path output = folder / ("run" + std::to_string(runs));
    // Repeats until the run ends before it is killed; each start gets further on average.
    for (bool ended = false; !ended;) {
      Process process(GetParam().arguments(folder, output));
      std::this_thread::sleep_for(milliseconds(random.below(static_cast<uint64_t>(whole_time.count()) + 1)));
      if (killed < test_run().moments) process.send(SIGKILL);
      const Outcome outcome = process.wait();
      // Ranks end shortly after their launcher, and hold the folder until then.
      if (outcome.code == 2 && outcome.err.find("another run writes") != std::string::npos) continue;
      ASSERT_TRUE(outcome.code == 0 || outcome.code == 128 + SIGKILL) << outcome.code << outcome.err;
      expect_whole_checkpoints(output);
      ended = outcome.code == 0;
      if (!ended) ++killed;
      if (!ended) saving += is_saving(output);
    }
    expect_same_run(folder / "whole", output);
    for (const std::string& name : names_in(output)) {
      EXPECT_EQ(name.find(".hone-"), std::string::npos) << name;
    }
    fs::remove_all(output);
  }
  std::printf("%d kills of %d runs, %d while something was saved\n", killed, runs, saving);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Killed,
    ::testing::Values(Kind{"full", {}},
                      Kind{"lora", {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]"}},
                      Kind{"shards", {"max_shard_size=20KB"}},
                      Kind{"zero_1", {"zero_stage=1", "global_batch_size=4"}, true}),
    [](const auto& kind) { return std::string(kind.param.name); });

// One rank of several is lost.

/// A run of `ranks` ranks.
std::vector<std::string> arguments_of_ranks(const Kind& kind, const Folder& folder, const fs::path& output, int ranks) {
  std::vector<std::string> all = kind.arguments(folder, output);
  all[2] = std::to_string(ranks);
  return all;
}

bool is_alive(pid_t process) { return ::kill(process, 0) == 0; }

/// The process of each rank, when all have joined: the launcher's children in the first rank's log; empty if the
/// launcher ended before.
std::map<int, pid_t> ranks_of(const Process& launcher, const fs::path& output, size_t ranks) {
  const std::regex pattern(R"(rank (\d+) \([^,]*, pid (\d+)\))");
  const std::string id = std::to_string(launcher.id()), children = "/proc/" + id + "/task/" + id + "/children";
  while (launcher.runs()) {
    std::ifstream numbers(children);
    const std::set<pid_t> own{std::istream_iterator<pid_t>(numbers), {}};
    const std::string log = fs::exists(output / "run.log") ? read_file(output / "run.log") : "";
    std::map<int, pid_t> found;
    for (std::sregex_iterator i(log.begin(), log.end(), pattern), end; i != end; ++i) {
      if (own.contains(std::stoi((*i)[2]))) found[std::stoi((*i)[1])] = std::stoi((*i)[2]);
    }
    if (found.size() == ranks) return found;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return {};
}

/// Waits until `condition` holds; false after `limit`.
template <class Condition>
bool holds_within(Clock::duration limit, const Condition& condition) {
  for (const Clock::time_point end = Clock::now() + limit; !condition();) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

class RankLost : public ::testing::TestWithParam<Kind> {};

/// With --moments from 20 on, each tenth rank is stopped, which others notice by its silence of 18 s.
TEST_P(RankLost, IsNamedAndTheOthersEndAndTheRunGoesOn) {
  constexpr std::chrono::seconds kNamed{20};
  const Folder folder;
  make_inputs(folder);
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t seed = test_run().seed == 0 ? now % 1'000'000 + 1 : test_run().seed;
  PhiloxSequence random(seed);
  std::map<int, Clock::duration> whole_times;
  int lost = 0, stopped = 0, saving = 0, runs = 0;
  Clock::duration longest{}, longest_stopped{};
  for (; lost < test_run().moments; ++runs) {
    const int ranks = 2 + runs % 3;
    const fs::path output = folder / ("run" + std::to_string(runs)), whole = folder / ("of" + std::to_string(ranks));
    if (!whole_times.contains(ranks)) {
      const Clock::time_point begin = Clock::now();
      const Outcome uninterrupted = run_hone(arguments_of_ranks(GetParam(), folder, whole, ranks));
      ASSERT_EQ(uninterrupted.code, 0) << uninterrupted.err;
      whole_times[ranks] = Clock::now() - begin;
    }
    const auto most = std::chrono::duration_cast<milliseconds>(whole_times[ranks]).count();
    for (bool ended = false; !ended;) {
      Process launcher(arguments_of_ranks(GetParam(), folder, output, ranks));
      const std::map<int, pid_t> processes = ranks_of(launcher, output, static_cast<size_t>(ranks));
      pid_t victim = 0;
      bool stops = false;
      Clock::time_point when;
      if (!processes.empty() && lost < test_run().moments) {
        std::this_thread::sleep_for(milliseconds(random.below(static_cast<uint64_t>(most) * 2 / 3 + 1)));
        if (random.below(2) == 0) holds_within(std::chrono::seconds(2), [&] { return is_saving(output); });
        victim = processes.at(static_cast<int>(random.below(static_cast<uint64_t>(ranks))));
        stops = test_run().moments >= 20 && lost % 10 == 9;
        const bool saves = is_saving(output);
        when = Clock::now();
        if (::kill(victim, stops ? SIGSTOP : SIGKILL) != 0) victim = 0;
        lost += victim != 0;
        stopped += victim != 0 && stops;
        saving += victim != 0 && saves;
      }
      bool named = false;
      if (victim != 0) {
        // A rank that ends before it is noticed was at its end.
        const auto is_named = [&] {
          return launcher.errors().find("pid " + std::to_string(victim) + ") is lost") != std::string::npos;
        };
        holds_within(kNamed, [&] { return is_named() || !launcher.runs(); });
        named = is_named();
        Clock::duration& most_so_far = stops ? longest_stopped : longest;
        if (named) most_so_far = std::max(most_so_far, Clock::now() - when);
      }
      const Outcome outcome = launcher.wait();
      ended = outcome.code == 0;
      if (victim == 0) {
        ASSERT_TRUE(ended) << outcome.code << outcome.err;
      } else if (!named) {
        ASSERT_TRUE(fs::exists(output / ("checkpoint-" + std::to_string(kSteps)))) << outcome.code << outcome.err;
      } else {
        ASSERT_EQ(outcome.code, 4) << outcome.err;
      }
      for (const auto& [rank, process] : processes) {
        EXPECT_TRUE(holds_within(kNamed, [&, id = process] { return !is_alive(id); })) << "rank " << rank << " lives";
      }
      expect_whole_checkpoints(output);
    }
    expect_same_run(whole, output);
    for (const std::string& name : names_in(output)) EXPECT_EQ(name.find(".hone-"), std::string::npos) << name;
    fs::remove_all(output);
  }
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  std::printf(
      "--seed %llu: %d ranks lost in %d runs, %d while something was saved; named after at most %.1f s; %d of them "
      "stopped, named after at most %.1f s\n",
      static_cast<unsigned long long>(seed), lost, runs, saving, seconds(longest), stopped, seconds(longest_stopped));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RankLost,
                         ::testing::Values(Kind{"shares_all",
                                                {"zero_stage=3", "stage3_param_persistence_threshold=0",
                                                 "global_batch_size=24", "save_steps=1", "max_shard_size=20KB"},
                                                true},
                                           Kind{"experts_on_host",
                                                {"experts_device=cpu", "finetuning_type=lora", "lora_r=4",
                                                 "lora_target_modules=[attention,all-experts]", "global_batch_size=24",
                                                 "save_steps=1", "generate_samples=true"},
                                                true}),
                         [](const auto& kind) { return std::string(kind.param.name); });

/// Makes checkpoint-`step` of a run in `output` one that a survivor saved before the evaluation of that step ended:
/// its best evaluation is that of `before`.
void forget_evaluation(const fs::path& output, int step, int before) {
  const auto state_of = [&](int of) { return output / ("checkpoint-" + std::to_string(of)) / "training_state.json"; };
  Json state = Json::parse(read_file(state_of(step)));
  ASSERT_EQ(state["evaluation_due"], false);
  ASSERT_EQ(state["best_step"], step);
  const Json older = Json::parse(read_file(state_of(before)));
  for (const char* name : {"best_metric", "best_step", "evals_without_improvement"}) state[name] = older[name];
  state["evaluation_due"] = true;
  std::ofstream(state_of(step)) << state.dump();
  fs::remove(state_of(step).parent_path() / "hone_manifest.json");
}

TEST(RankLost, AnEvaluationThatWasNotEndedIsDoneAfterResume) {
  const Folder folder;
  make_inputs(folder);
  ASSERT_EQ(run_hone(arguments(folder, folder / "whole")).code, 0);
  const fs::path output = folder / "out";
  fs::copy(folder / "whole", output, fs::copy_options::recursive);
  forget_evaluation(output, kSteps, kSteps - 2);
  const Outcome resumed = run_hone(arguments(folder, output));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  expect_same_run(folder / "whole", output);
}

/// The step of the checkpoint is not one at which the run saves, and is the best so far.
TEST(RankLost, AnEvaluationThatIsDoneAgainLeavesTheStateInItsCheckpoint) {
  const Folder folder;
  make_inputs(folder);
  const fs::path output = folder / "out", state = output / "checkpoint-18" / "training_state.json";
  const std::vector<std::string> best = {"load_best_model_at_end=true", "save_steps=6", "save_total_limit=9"};
  ASSERT_EQ(run_hone(arguments(folder, output, best)).code, 0);
  fs::remove_all(output / "checkpoint-24");
  forget_evaluation(output, 18, 12);
  const Outcome resumed =
      run_hone(arguments(folder, output, {"load_best_model_at_end=true", "save_steps=100", "save_total_limit=9"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_TRUE(fs::exists(state)) << "the checkpoint has weights alone";
  const Json after = Json::parse(read_file(state));
  EXPECT_EQ(after["evaluation_due"], false);
  EXPECT_EQ(after["best_step"], 18);
}

/// During its lifetime, started programs cannot write files longer than `bytes`.
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
  // From an empty quota, over disks that fill up during the weights or the optimizer's state, to space for one or two
  // more checkpoints.
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

TEST(Crash, AMergeOntoAFullDiskLeavesWhatWasThere) {
  const Folder folder;
  const SmallDisk disk(folder / "disk", "size=4m");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  make_inputs(folder);
  const std::string adapter = (folder / "lora").string(), output = (folder / "disk/merged").string();
  ASSERT_EQ(run_hone(train_arguments((folder / "model").string(), (folder / "data.jsonl").string(), adapter,
                                     {"finetuning_type=lora", "max_steps=1"}))
                .code,
            0);
  const std::vector<std::string> merge = {"merge",    "--model", (folder / "model").string(), "--adapter", adapter,
                                          "--output", output};
  for (const uintmax_t kilobytes : {12, 32}) {
    disk.fill(kilobytes << 10);
    const Outcome outcome = run_hone(merge);
    disk.empty();
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find("No space left on device"), std::string::npos) << outcome.err;
    EXPECT_EQ(names_in(folder / "disk"), std::vector<std::string>());
  }
  EXPECT_EQ(run_hone(merge).code, 0);
}

}  // namespace
}  // namespace hone
