// Tests of hone bench through the command line.
#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <thread>

#include "program.h"

namespace hone {
namespace {

/// A step of one layer of the smallest shape, quick enough for a test.
std::vector<std::string> step_arguments(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "step",  "--model", "cpu-moe", "--layers", "1",       "--device",
                                        "cpu",   "--seq", "16",      "--batch", "2",        "--steps", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(BenchStep, MeasuresFullTraining) {
  const Outcome outcome = run_hone(step_arguments({"--json", "-"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  // Embedding, head, attention, router, 32 experts of three matrices, norms.
  const int64_t hidden = 1024, attention = 2 * hidden * (1024 + 256), experts = 32 * 3 * hidden * 512;
  const int64_t parameters = 2 * 32000 * hidden + attention + 32 * hidden + experts + 3 * hidden + 2 * 64;
  EXPECT_EQ(json["parameters"], parameters);
  EXPECT_EQ(json["trained"], parameters);
  EXPECT_EQ(json["step_ms"]["all"].size(), 2u);
  EXPECT_EQ(json["precision"]["master"], "float32");
  // Each tensor of the two head norms is padded to Arena::kAlignment.
  EXPECT_NEAR(json["memory"]["weights"].get<double>(), 2.0 * static_cast<double>(parameters), 1000);
  EXPECT_NEAR(json["memory"]["moments"].get<double>(), 8.0 * static_cast<double>(parameters), 1000);
  EXPECT_NEAR(json["loss"].get<double>(), std::log(32000.0), 0.5) << "random tokens, weights near zero";
  EXPECT_GT(json["grad_norm"].get<double>(), 0);
  EXPECT_EQ(json["recompute"], "none") << "this fits everywhere";
  // Forward three times: products, four experts of a token, half of sixteen positions.
  const double flops =
      2.0 * static_cast<double>(attention + 32 * hidden + 4 * 3 * hidden * 512 + hidden * 32000 + 16 * hidden);
  EXPECT_NEAR(json["model_flops_per_token"].get<double>(), 3 * flops, 1);
  const double median = json["step_ms"]["median"];
  EXPECT_GT(json["host_ms"].get<double>(), 0);
  EXPECT_LE(json["host_ms"].get<double>(), json["step_ms"]["max"].get<double>());
  EXPECT_NEAR(json["tokens_per_second"].get<double>(), 32 / (median * 1e-3), 1e-6 * 32 / (median * 1e-3));
}

/// How often an op ran in each pass of a time line.
std::map<std::string, int> passes_of(const std::string& op, const std::string& trace) {
  std::map<std::string, int> passes;
  const Json time_line = Json::parse(read_file(trace));
  for (const Json& event : time_line["traceEvents"]) {
    if (event["name"] == op) ++passes[event["args"]["pass"]];
  }
  return passes;
}

TEST(BenchStep, MeasuresLoraAndWritesATimeLine) {
  const Folder folder;
  const std::string trace = (folder / "trace.json").string();
  const Outcome outcome = run_hone(step_arguments({"--mode", "lora-all", "--profile", trace, "--json",
                                                   (folder / "step.json").string(), "--recompute", "everything"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* text : {"tokens a second", "model TFLOP/s", "activations", "moe_gate_up backward", "idle"}) {
    EXPECT_TRUE(contains(outcome.out, text)) << text << " is not in\n" << outcome.out;
  }
  const Json json = Json::parse(read_file(folder / "step.json"));
  // r 16 on q, k, v, o and, shared by gate and up, on every expert.
  EXPECT_EQ(json["trained"], 16 * (2 * (1024 + 1024) + 2 * (1024 + 256)) + 32 * 16 * (1024 + 1024 + 512 + 1024));
  EXPECT_EQ(json["expert_lora"], "shared");
  double sum = 0;
  for (const Json& group : json["profile"]["groups"]) sum += group["ms"].get<double>();
  EXPECT_NEAR(sum, json["profile"]["step_ms"].get<double>(), 1e-6 * sum) << "groups and idle are the whole step";
  std::map<std::string, std::string> group_of;
  for (const Json& op : json["profile"]["ops"]) group_of[op["name"]] = op["group"];
  for (const auto& [op, group] : std::map<std::string, std::string>{{"linear forward", "dense"},
                                                                    {"lora_down forward", "dense"},
                                                                    {"attention backward", "attention"},
                                                                    {"router forward", "experts"},
                                                                    {"moe_permutation forward", "experts"},
                                                                    {"moe_gate_up recompute", "experts"},
                                                                    {"load_balancing", "experts"},
                                                                    {"linear_cross_entropy forward", "head"},
                                                                    {"rms_norm forward", "memory-bound"},
                                                                    {"zero_gradients", "memory-bound"},
                                                                    {"grad_norm", "optimizer"},
                                                                    {"adamw", "optimizer"}}) {
    EXPECT_EQ(group_of[op], group) << op;
  }
  using Passes = std::map<std::string, int>;
  EXPECT_EQ(passes_of("attention", trace), (Passes{{"forward", 3}, {"recompute", 3}, {"backward", 3}}))
      << "three steps of one layer";
  const std::string kept = (folder / "kept.json").string();
  ASSERT_EQ(
      run_hone(step_arguments({"--mode", "lora-all", "--profile", kept, "--recompute", "all_but_attention"})).code, 0);
  EXPECT_EQ(passes_of("attention", kept), (Passes{{"forward", 3}, {"backward", 3}}));
  EXPECT_EQ(passes_of("moe_gate_up", kept), passes_of("moe_gate_up", trace));
}

TEST(BenchStep, ReadsAModelFolder) {
  const Folder folder;
  const Outcome outcome = run_hone({"bench", "step", "--model", make_model(folder), "--device", "cpu", "--seq", "8",
                                    "--batch", "1", "--steps", "1", "--mode", "lora", "--dtype", "float32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "2 layers")) << outcome.out;
}

TEST(BenchStep, RanksOfAHostHoldExpertsOnTheCpuOnce) {
  const Folder folder;
  constexpr int64_t kExperts = 32 * 3 * 1024 * 512;
  const auto run = [&](const std::string& output, const std::vector<std::string>& more) {
    std::vector<std::string> arguments =
        step_arguments({"--mode", "lora", "--experts-device", "cpu", "--json", (folder / output).string()});
    arguments.insert(arguments.begin(), {"launch", "-n", "2", "--device", "cpu", "--"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "not measured: each would hold all experts")) << outcome.out;
    const Json json = Json::parse(read_file(folder / output));
    EXPECT_EQ(json["ranks"], 2);
    EXPECT_NEAR(json["loss"].get<double>(), std::log(32000.0), 0.5);
    return json["memory"]["host_shared"].get<double>();
  };
  // Each rank has half. An int8 row has a scale, and NF4 a scale for 64 values.
  EXPECT_NEAR(run("bfloat16", {"--zero-stage", "3"}), kExperts, 1e4);
  EXPECT_NEAR(run("int8", {"--expert-weight-dtype", "int8"}), 0.5 * kExperts, 0.01 * kExperts);
  EXPECT_NEAR(run("nf4", {"--base-weight-dtype", "nf4"}), 0.25 * kExperts, 0.03 * kExperts);
}

TEST(BenchStep, RefusesWhatItDoesNotKnow) {
  const auto expect = [](const std::vector<std::string>& arguments, const std::string& text) {
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(contains(outcome.err, text)) << text << " is not in\n" << outcome.err;
  };
  expect({"bench", "step", "--model", "mixtral-8x7"}, "Did you mean 'mixtral-8x7b'?");
  expect({"bench", "step"}, "--model is required");
  expect({"bench", "step", "--model", "cpu-moe", "--bach", "3"}, "Did you mean '--batch'");
  expect({"bench", "steps"}, "Did you mean 'step'?");
  expect({"bench"}, "hone bench step");
  expect(step_arguments({"--mode", "fulll"}), "Did you mean 'full'?");
  expect(step_arguments({"--recompute", "norm"}), "Did you mean 'norms'");
  expect({"bench", "step", "--model", "cpu-moe", "--device", "gpu0"}, "expected one of auto, cpu, cuda");
  expect({"bench", "step", "--model", "cpu-moe", "--device", "cpu", "--layers", "9"}, "9 of 8 layers");
  EXPECT_TRUE(contains(run_hone({"bench", "step", "--help"}).out, "--recompute"));
}

/// A grid of the tiny model, with more lines after its defaults.
std::string write_grid(const Folder& folder, const std::string& name, const std::string& lines) {
  return folder.write(name, "defaults: {model: " + make_model(folder) +
                                ", device: cpu, seq: 8, batch: 1, steps: 1, warmup: 0, dtype: float32, threads: 1}\n" +
                                lines);
}

/// Whether a process has `text` in its command line.
bool is_running(const std::string& text) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline");
    const std::string command{std::istreambuf_iterator<char>(file), {}};
    if (contains(command, text)) return true;
  }
  return false;
}

void wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000 && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(holds());
}

TEST(BenchGrid, EveryScenarioHasARowAndIsMeasuredOnce) {
  const Folder folder;
  const std::string grid = write_grid(folder, "grid.yaml", R"(matrix: {mode: [full, lora]}
include:
  - {ranks: 2, zero_stage: 1, expert_parallel_size: 2}
  - {mode: fulll}
  - {seq: 128, batch: 4000000}
memory: [plan, device, host]
)");
  const std::string output = (folder / "results").string();
  const Outcome listed = run_hone({"bench", "grid", grid, "--output", output, "--dry-run"});
  ASSERT_EQ(listed.code, 0) << listed.err;
  EXPECT_TRUE(contains(listed.out, "hone launch -n 2 --device cpu -- bench step --model")) << listed.out;
  EXPECT_FALSE(std::filesystem::exists(output));

  const Outcome outcome = run_hone({"bench", "grid", grid, "--output", output});
  EXPECT_EQ(outcome.code, 1) << outcome.err << "one is refused";
  const std::vector<Json> rows = read_json_lines(folder / "results/grid.jsonl");
  ASSERT_EQ(rows.size(), 5u) << outcome.err;
  const std::vector<std::string> ends = {"measured", "measured", "measured", "refused", "does not fit"};
  for (size_t i = 0; i < ends.size(); ++i) EXPECT_EQ(rows[i]["status"], ends[i]) << rows[i].dump(2);
  EXPECT_EQ(rows[1]["result"]["mode"], "lora");
  EXPECT_EQ(rows[2]["result"]["ranks"], 2);
  EXPECT_EQ(rows[2]["result"]["expert_parallel_size"], 2);
  EXPECT_TRUE(contains(rows[3]["message"], "Did you mean 'full'?")) << rows[3];
  for (const char* text :
       {"3 measured, 1 does not fit, 1 refused", "of one rank", "4: refused: 'fulll' is not a mode"}) {
    EXPECT_TRUE(contains(outcome.out, text)) << text << " is not in\n" << outcome.out;
  }
  const std::string csv = read_file(folder / "results/grid.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 6);
  EXPECT_TRUE(contains(csv, "plan_bytes,device_bytes,device_bytes_before,host_plan_bytes,host_peak_bytes")) << csv;

  const Outcome again = run_hone({"bench", "grid", grid, "--output", output, "--retry", "refused"});
  EXPECT_TRUE(contains(again.err, "5 scenarios, 1 to run")) << again.err;
  EXPECT_EQ(read_json_lines(folder / "results/grid.jsonl").size(), 6u);
  const Outcome none = run_hone({"bench", "grid", grid, "--output", output, "--only", "mode=full,lora", "--memory",
                                 "none", "--compare", (folder / "results/grid.jsonl").string()});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_TRUE(contains(none.err, "4 scenarios, 0 to run")) << none.err;
  EXPECT_TRUE(contains(none.out, "100.0 %")) << none.out;
  EXPECT_EQ(read_file(folder / "results/grid.csv").find("plan_bytes"), std::string::npos);
}

TEST(BenchGrid, EndsAScenarioThatTakesTooLong) {
  const Folder folder;
  const std::string grid = write_grid(folder, "grid.yaml", "matrix: {steps: [100000000]}\nlimit_s: 0.5\n");
  const Outcome outcome = run_hone({"bench", "grid", grid, "--output", (folder / "results").string()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "1: timed out: it took longer than 0.5 s; raise limit_s")) << outcome.out;
  EXPECT_FALSE(is_running((folder / "model").string()));
}

TEST(BenchGrid, GoesOnAfterASignal) {
  for (const int signal : {SIGINT, SIGKILL}) {
    const Folder folder;
    const std::string grid = write_grid(folder, "grid.yaml", "matrix: {steps: [1, 100000000]}\n");
    const std::vector<std::string> command = {"bench", "grid", grid, "--output", (folder / "results").string()};
    Process running(command);
    wait_until([&] { return contains(running.errors(), "[2/2]"); });
    running.send(signal);
    const Outcome outcome = running.wait();
    EXPECT_EQ(outcome.code, signal == SIGINT ? 75 : 128 + SIGKILL);
    // Neither the scenario, nor a copy of the grid that was to become one and still has its lock.
    wait_until([&] { return !is_running((folder / "model").string()) && !is_running(grid); });
    EXPECT_EQ(read_json_lines(folder / "results/grid.jsonl").size(), 1u);
    EXPECT_EQ(std::filesystem::exists(folder / "results/grid.csv"), true);
    std::vector<std::string> first = command;
    first.insert(first.end(), {"--only", "steps=1"});
    const Outcome again = run_hone(first);
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(contains(again.err, "1 scenario, 0 to run")) << again.err;
  }
}

TEST(BenchGrid, RefusesWhatIsNotAGrid) {
  const Folder folder;
  const auto expect = [&](const std::vector<std::string>& arguments, const std::string& text) {
    std::vector<std::string> words = {"bench", "grid"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_hone(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(contains(outcome.err, text)) << text << " is not in\n" << outcome.err;
  };
  const std::string bad = folder.write("bad.yaml", "matrix: {model: [cpu-moe], zero_stag: [1]}\n");
  const std::string good = folder.write("good.yaml", "matrix: {model: [cpu-moe]}\n");
  expect({}, "FILE is required");
  expect({bad}, "Did you mean 'zero_stage'?");
  expect({(folder / "none.yaml").string()}, "none.yaml");
  expect({good, "--retry", "failled"}, "Did you mean 'failed'?");
  expect({good, "--memory", "hots"}, "Did you mean 'host'?");
  expect({good, "--only", "batch=9"}, "no scenario of the grid has batch=9");
  expect({good, "--compare", (folder / "none.jsonl").string()}, "none.jsonl");
  const Outcome launched = run_hone({"launch", "-n", "2", "--device", "cpu", "--", "bench", "grid", good});
  EXPECT_TRUE(contains(launched.err, "starts the ranks of its scenarios itself")) << launched.err;
}

TEST(BenchOps, TimesEveryOpAndFindsRegressions) {
  const Folder folder;
  const std::string model = make_model(folder);
  const auto file = [&](const char* name) { return (folder / name).string(); };
  const std::vector<std::string> common = {"bench", "ops", "--device", "cpu", "--model", model, "--tokens", "16"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return run_hone(more);
  };
  const Outcome all = run({"--json", file("all.json"), "--op", "moe"});
  ASSERT_EQ(all.code, 0) << all.err;
  Json json = Json::parse(read_file(folder / "all.json"));
  EXPECT_GT(json["gemm_tflops"].get<double>(), 0);
  EXPECT_GT(json["copy_gbs"].get<double>(), 0);
  EXPECT_GE(json["peak_tflops"].get<double>(), 0.5 * json["gemm_tflops"].get<double>());
  ASSERT_GE(json["ops"].size(), 7u);
  for (const Json& row : json["ops"]) {
    EXPECT_TRUE(contains(row["name"], "moe"));
    EXPECT_GT(row["ms"].get<double>(), 0) << row;
  }
  for (Json& row : json["ops"]) row["ms"] = 1e6;
  std::ofstream(folder / "slow.json") << json;
  for (Json& row : json["ops"]) row["ms"] = 1e-6;
  std::ofstream(folder / "fast.json") << json;
  EXPECT_EQ(run({"--op", "moe", "--compare", file("slow.json")}).code, 0);
  const Outcome slower = run({"--op", "moe_down", "--compare", file("fast.json")});
  EXPECT_EQ(slower.code, 1);
  EXPECT_TRUE(contains(slower.err, "slower: moe_down")) << slower.err;
  EXPECT_EQ(run({"--op", "moe_down", "--compare", model}).code, 2);
  const Outcome of_folder = run({"--op", "momentum", "--json", file("momentum.json")});
  ASSERT_EQ(of_folder.code, 0) << of_folder.err;
  EXPECT_EQ(Json::parse(read_file(folder / "momentum.json"))["ops"][0]["name"], "lion");
  const Outcome unknown = run({"--op", "attentoin"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(contains(unknown.err, "Did you mean 'attention'")) << unknown.err;
}

TEST(BenchOps, CountsWhatNodesState) {
  const Folder folder;
  const Outcome outcome = run_hone({"bench", "ops", "--device", "cpu", "--model", make_model(folder), "--tokens", "16",
                                    "--seq", "8", "--json", (folder / "ops.json").string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, double> flops, bytes;
  const Json json = Json::parse(read_file(folder / "ops.json"));
  for (const Json& row : json["ops"]) {
    ASSERT_FALSE(row.contains("missing")) << row;
    flops[row["name"]] = row["tflops"].get<double>() * row["ms"].get<double>() * 1e9;
    bytes[row["name"]] = row["gbs"].get<double>() * row["ms"].get<double>() * 1e6;
  }
  const Json config = tiny_config();
  const double hidden = config["hidden_size"], heads = config["num_attention_heads"], dim = config["head_dim"];
  const double experts = config["num_experts"], chosen = config["num_experts_per_tok"];
  const double inner = config["moe_intermediate_size"], vocab = config["vocab_size"];
  const auto expect = [&](const std::string& name, double of_name) {
    EXPECT_NEAR(flops[name], of_name, 1e-9 * of_name) << name;
  };
  expect("linear q_proj", 2 * 16 * hidden * heads * dim);
  expect("linear q_proj grad dx dW", 4 * 16 * hidden * heads * dim);
  expect("attention", 4 * 2 * 8 * 8 / 2 * heads * dim);
  expect("attention grad", 10 * 2 * 8 * 8 / 2 * heads * dim);
  expect("router grad", 6 * 16 * hidden * experts);
  expect("moe_gate_up", 4 * 16 * chosen * hidden * inner);
  expect("moe layer", 18 * 16 * chosen * hidden * inner);
  expect("moe layer, LoRA", 12 * 16 * chosen * hidden * inner);
  expect("linear_cross_entropy", 6 * 16 * hidden * vocab);
  expect("rms_norm", 0);
  EXPECT_NEAR(bytes["rms_norm"], 2 * 2 * 16 * hidden, 1e-6);
}

TEST(BenchOps, TakesAModelThatHasTheOp) {
  const Outcome outcome =
      run_hone({"bench", "ops", "--device", "cpu", "--op", "swiglu", "--tokens", "4", "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_NE(json["model"], "cpu-moe") << "it has no dense MLP";
  EXPECT_EQ(json["ops"].size(), 2u);
}

TEST(BenchOps, TimesExpertsOf8BitsWhereTheyFit) {
  // With 32, gate and up together have a multiple of 64 rows, but down's depth is not a multiple.
  for (const auto& [intermediate, fits] : {std::pair{32, false}, {64, true}}) {
    const Folder folder;
    Json config = tiny_config();
    config["hidden_size"] = 64;
    config["moe_intermediate_size"] = intermediate;
    const Outcome outcome = run_hone({"bench", "ops", "--device", "cpu", "--model", make_model(folder, config), "--op",
                                      "moe layer, LoRA", "--tokens", "16"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(contains(outcome.out, "moe layer, LoRA, int8"), fits) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "moe layer, LoRA, int4 ")) << outcome.out;
    EXPECT_FALSE(contains(outcome.out, "moe layer, LoRA, int4_128")) << outcome.out;
  }
}

TEST(BenchOps, RunsWithEachValueOfOneOption) {
  const Folder folder;
  const std::string model = make_model(folder), file = (folder / "points.json").string();
  const std::vector<std::string> common = {"bench", "ops",  "--device", "cpu",    "--model",
                                           model,   "--op", "moe",      "--json", file};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return run_hone(more);
  };
  const auto points_of = [&](const std::vector<std::string>& more, const char* key) {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<int64_t> values;
    const Json results = Json::parse(read_file(file));
    for (const Json& point : results["points"]) {
      values.push_back(point[key]);
      EXPECT_GT(point["ops"][0]["ms"].get<double>(), 0);
      EXPECT_GT(point["peak_tflops"].get<double>(), 0);
    }
    return values;
  };
  EXPECT_EQ(points_of({"--threads", "1,2", "--tokens", "16"}, "threads"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(points_of({"--tokens", "8,24"}, "tokens"), (std::vector<int64_t>{8, 24}));
  EXPECT_EQ(points_of({"--experts", "4,6", "--tokens", "16"}, "experts"), (std::vector<int64_t>{4, 6}));
  const auto expect = [&](const std::vector<std::string>& more, const std::string& text) {
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_TRUE(contains(outcome.err, text)) << text << " is not in\n" << outcome.err;
  };
  expect({"--threads", "1,2", "--tokens", "8,16"}, "only one option can have several values");
  expect({"--experts", "1"}, "experts for each token");
  expect({"--threads", "1,x"}, "--threads");
  expect({"--threads", "-1"}, "--threads");
  expect({"--tokens", "0,8"}, "--tokens");
}

}  // namespace
}  // namespace hone
