// Tests of complete runs through the command line with a tiny model.
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <thread>

#include "core/base/philox.h"
#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

Outcome train(const Folder& folder, const std::string& model, const std::string& output,
              const std::vector<std::string>& more) {
  const std::string data = folder.write("data.jsonl", progressions(40));
  return run_hone(train_arguments(model, data, folder / output, more));
}

void expect_same_file(const fs::path& a, const fs::path& b) {
  EXPECT_TRUE(read_file(a) == read_file(b)) << a << " and " << b << " differ";
}

TEST(Runs, FullFineTuningLearnsAndWritesAModelWithItsRecords) {
  const Folder folder;
  const std::string model = make_model(folder);
  const Outcome outcome = train(folder, model, "out", {"num_train_epochs=8", "dtype=float32", "val_split=4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("trainable params: "), std::string::npos) << outcome.out;
  std::vector<Json> steps, evaluations;
  for (const Json& line : read_json_lines(folder / "out/metrics.jsonl")) {
    (line.contains("eval_loss") ? evaluations : steps).push_back(line);
  }
  ASSERT_GT(steps.size(), 8u);
  for (const char* name : {"step", "epoch", "loss", "loss_with_aux", "grad_norm", "learning_rate", "num_tokens",
                           "num_supervised_tokens", "tokens_per_second", "samples_per_second", "step_time",
                           "mean_token_accuracy", "router/aux_loss", "router/load_max_over_mean"}) {
    EXPECT_TRUE(steps.front().contains(name)) << name;
  }
  const double first = steps.front()["loss"], last = steps.back()["loss"];
  EXPECT_NEAR(first, std::log(64.0), 0.3);  // a random model predicts uniformly
  EXPECT_LT(last, 0.5 * first);
  ASSERT_FALSE(evaluations.empty());
  EXPECT_LT(evaluations.back()["eval_loss"].get<double>(), evaluations.front()["eval_loss"].get<double>());
  for (const char* name :
       {"config.json", "model.safetensors", "trainer_state.json", "run.log", "config.resolved.yaml"}) {
    EXPECT_TRUE(fs::exists(folder / "out" / name)) << name;
  }
  EXPECT_FALSE(fs::is_empty(folder / "out/runs"));
  // Names and dtypes of tensors do not change.
  const SafetensorsFile before(fs::path(model) / "model.safetensors"), after(folder / "out/model.safetensors");
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const SafetensorsEntry& entry : before.entries()) {
    ASSERT_TRUE(after.find(entry.name)) << entry.name;
    EXPECT_EQ(after.find(entry.name)->dtype, entry.dtype);
  }
}

TEST(Runs, AResolvedConfigurationRunsAgainToTheSameBits) {
  const Folder folder;
  const std::string model = make_model(folder);
  ASSERT_EQ(train(folder, model, "one", {"max_steps=3"}).code, 0);
  const Outcome again = run_hone({"train", (folder / "one/config.resolved.yaml").string(),
                                  "output_dir=" + (folder / "two").string(), "threads=2"});
  ASSERT_EQ(again.code, 0) << again.err;
  expect_same_file(folder / "one/model.safetensors", folder / "two/model.safetensors");
}

/// Compares a run of 2N steps with N steps plus N more after resuming.
void expect_resume_changes_nothing(const std::vector<std::string>& options, const std::string& weights) {
  const Folder folder;
  const std::string model = make_model(folder);
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  const Outcome whole = train(folder, model, "whole", with({"max_steps=8", "save_steps=4"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(train(folder, model, "parts", with({"max_steps=4", "save_steps=4"})).code, 0);
  const Outcome resumed = train(folder, model, "parts", with({"max_steps=8", "save_steps=4", "resume=auto"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("resumed from"), std::string::npos) << resumed.out;
  for (const std::string& name :
       {std::string("checkpoint-8/") + weights, weights, std::string("checkpoint-8/training_state.safetensors"),
        std::string("checkpoint-8/training_state.json")}) {
    expect_same_file(folder / "whole" / name, folder / "parts" / name);
  }
  EXPECT_EQ(read_json_lines(folder / "parts/metrics.jsonl").size(), 8u);
}

TEST(Runs, ResumingAFullRunGivesTheSameBits) { expect_resume_changes_nothing({"val_split=0"}, "model.safetensors"); }

TEST(Runs, WithLayerInputsInFewerBitsLearnAlike) {
  const Folder folder;
  const std::string model = make_model(folder);
  const auto losses = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), {"num_train_epochs=8", "gradient_checkpointing=true", "val_split=0"});
    const Outcome outcome = train(folder, model, output, more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> all;
    for (const Json& line : read_json_lines(folder / output / "metrics.jsonl")) all.push_back(line["loss"]);
    return all;
  };
  const std::vector<double> exact = losses("exact", {}), rounded = losses("rounded", {"layer_input_dtype=fp8"});
  ASSERT_EQ(rounded.size(), exact.size());
  EXPECT_EQ(rounded.front(), exact.front()) << "forward is exact, and no weight has been stepped";
  EXPECT_NE(rounded.back(), exact.back());
  // As far apart as runs whose states are in fewer bits (below).
  EXPECT_NEAR(rounded.back(), exact.back(), 0.1);
  EXPECT_LT(rounded.back(), 0.5 * rounded.front());
  EXPECT_EQ(losses("offloaded", {"layer_input_dtype=fp8", "cpu_offload=[activations]"}), rounded);
  expect_same_file(folder / "offloaded/model.safetensors", folder / "rounded/model.safetensors");
  EXPECT_TRUE(contains(read_file(folder / "rounded/config.resolved.yaml"), "layer_input_dtype: fp8"));
  const Outcome dry = train(folder, model, "dry", {"layer_input_dtype=fp8", "--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_TRUE(contains(dry.out, "layer inputs fp8")) << dry.out;
}

TEST(Runs, WithLayerInputsInFewerBitsAreResumedWithEitherValue) {
  expect_resume_changes_nothing({"val_split=0", "layer_input_dtype=fp8"}, "model.safetensors");
  const Folder folder;
  const std::string model = make_model(folder);
  ASSERT_EQ(train(folder, model, "out", {"max_steps=2", "save_steps=2", "layer_input_dtype=fp8"}).code, 0);
  const Outcome resumed = train(folder, model, "out", {"max_steps=4", "save_steps=2", "resume=auto"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

TEST(Runs, WithLayerInputsInFewerBitsNeedRowsOfWholeVectors) {
  const Folder folder;
  Json config = tiny_config();
  config["hidden_size"] = 24;
  const std::string model = make_model(folder, config);
  const Outcome outcome = train(folder, model, "out", {"layer_input_dtype=fp8"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "layer_input_dtype is fp8, which takes hidden sizes that are multiples of 16"))
      << outcome.err;
  const Outcome unknown = train(folder, model, "out", {"layer_input_dtype=int8"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(contains(unknown.err, "layer_input_dtype")) << unknown.err;
}

TEST(Runs, ResumingARunInFewerBitsGivesTheSameBits) {
  expect_resume_changes_nothing({"val_split=0", "opt_m_dtype=bfloat16", "opt_v_dtype=bfloat16"}, "model.safetensors");
  expect_resume_changes_nothing({"val_split=0", "optim=adamw_8bit", "dtype=bfloat16", "master_dtype=bfloat16",
                                 "grad_dtype=bfloat16", "gradient_accumulation_steps=2"},
                                "model.safetensors");
  expect_resume_changes_nothing({"val_split=0", "optim=adamw_8bit", "optimizer_in_backward=true", "max_grad_norm=0",
                                 "gradient_accumulation_steps=1"},
                                "model.safetensors");
}

/// Unbiased rounding gives the same loss as float32. The tolerance of 0.1 is larger than the difference between seeds,
/// and smaller than the loss of a run that lacks one of the moments or whose steps round to zero.
TEST(Runs, StateInFewerBitsLearnsAsFloat32Does) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::vector<std::vector<std::string>> precisions = {
      {},
      {"opt_m_dtype=bfloat16", "opt_v_dtype=bfloat16"},
      {"optim=adamw_8bit"},
      {"grad_dtype=bfloat16"},
      {"grad_dtype=bfloat16", "master_dtype=bfloat16", "optim=adamw_8bit"}};
  std::vector<double> losses;
  for (std::vector<std::string> options : precisions) {
    options.push_back("num_train_epochs=8");
    const std::string output = std::to_string(losses.size());
    const Outcome outcome = train(folder, model, output, options);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    losses.push_back(read_json_lines(folder / output / "metrics.jsonl").back()["loss"]);
    EXPECT_LT(losses.back(), 1.1 * losses.front()) << output;
  }
}

TEST(Runs, SteppingInBackwardGivesTheSameBits) {
  const Folder folder;
  const std::string model = make_model(folder);
  int number = 0;
  for (const std::vector<std::string>& precision :
       {std::vector<std::string>{"dtype=float32"},
        {"grad_dtype=bfloat16", "master_dtype=bfloat16", "optim=adamw_8bit"}}) {
    const std::string after = "after" + std::to_string(number), within = "within" + std::to_string(number++);
    std::vector<std::string> options = {"max_steps=6", "gradient_accumulation_steps=1", "max_grad_norm=0"};
    options.insert(options.end(), precision.begin(), precision.end());
    ASSERT_EQ(train(folder, model, after, options).code, 0);
    options.push_back("optimizer_in_backward=true");
    const Outcome outcome = train(folder, model, within, options);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same_file(folder / after / "model.safetensors", folder / within / "model.safetensors");
    const Json a = read_json_lines(folder / after / "metrics.jsonl").back(),
               b = read_json_lines(folder / within / "metrics.jsonl").back();
    EXPECT_EQ(a["loss"], b["loss"]);
    EXPECT_NEAR(a["grad_norm"].get<double>(), b["grad_norm"].get<double>(), 1e-6 * a["grad_norm"].get<double>());
  }
}

TEST(Runs, ResumingALoraRunWithDropoutGivesTheSameBits) {
  expect_resume_changes_nothing(
      {"finetuning_type=lora", "lora_dropout=0.1", "lora_r=4", "lora_target_modules=[attention,all-experts]"},
      "adapter_model.safetensors");
}

/// Checkpoints have the trained parameterisation for any layout of the final folder.
TEST(Runs, ResumingARunWithAnotherAdapterLayoutGivesTheSameBits) {
  for (const std::string layout : {"target_parameters", "kt"}) {
    expect_resume_changes_nothing(
        {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]", "adapter_layout=" + layout},
        "adapter_model.safetensors");
  }
}

TEST(Runs, ASignalSavesAndTheResumedRunEndsAsIfThereHadBeenNone) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.write("data.jsonl", progressions(40));
  Process process(train_arguments(model, data, folder / "stopped", {"max_steps=1000000"}));
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (fs::exists(folder / "stopped/metrics.jsonl") && fs::file_size(folder / "stopped/metrics.jsonl") > 1000) break;
  }
  process.send(SIGTERM);
  const Outcome outcome = process.wait();
  ASSERT_EQ(outcome.code, 75) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("stopped by SIGTERM"), std::string::npos) << outcome.out;
  const std::vector<Json> metrics = read_json_lines(folder / "stopped/metrics.jsonl");
  const auto stopped = metrics.back()["step"].get<int64_t>();
  ASSERT_TRUE(fs::exists(folder / "stopped" / ("checkpoint-" + std::to_string(stopped))));
  const std::string steps = "max_steps=" + std::to_string(stopped + 3);
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "stopped", {steps, "resume=auto"})).code, 0);
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "whole", {steps})).code, 0);
  expect_same_file(folder / "whole/model.safetensors", folder / "stopped/model.safetensors");
}

TEST(Runs, KeepsTheLastCheckpoints) {
  const Folder folder;
  const std::string model = make_model(folder);
  ASSERT_EQ(train(folder, model, "out", {"max_steps=11", "save_steps=1", "save_total_limit=2"}).code, 0);
  std::vector<std::string> kept;
  for (const std::string& name : names_in(folder / "out")) {
    if (name.starts_with("checkpoint-")) kept.push_back(name);
  }
  EXPECT_EQ(kept, (std::vector<std::string>{"checkpoint-10", "checkpoint-11"}));
}

TEST(Runs, TheBestModelIsKeptAndSavedAtTheEnd) {
  const Folder folder;
  const std::string model = make_model(folder);
  // Training and evaluation data are unrelated, so the evaluation loss rises from the first steps on.
  const std::string eval = folder.write("eval.jsonl", random_tokens(20));
  const Outcome outcome = train(folder, model, "out",
                                {"eval_datasets=" + eval, "max_steps=12", "eval_steps=2", "save_steps=2",
                                 "save_total_limit=1", "load_best_model_at_end=true", "learning_rate=1e-2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  double best = 1e9;
  int64_t best_step = 0;
  for (const Json& line : read_json_lines(folder / "out/metrics.jsonl")) {
    if (!line.contains("eval_loss") || line["eval_loss"].get<double>() >= best) continue;
    best = line["eval_loss"];
    best_step = line["step"];
  }
  ASSERT_LT(best_step, 12);
  const fs::path kept = folder / "out" / ("checkpoint-" + std::to_string(best_step));
  ASSERT_TRUE(fs::exists(kept)) << kept;
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-12"));
  expect_same_file(folder / "out/model.safetensors", kept / "model.safetensors");
}

double eval_loss(const std::string& model, const std::string& data, const std::string& checkpoint = "") {
  std::vector<std::string> arguments = {"eval",          "model=" + model, "datasets=" + data,
                                        "dtype=float32", "max_length=32",  "device=" + test_run().device,
                                        "--json"};
  if (!checkpoint.empty()) arguments.insert(arguments.end(), {"--checkpoint", checkpoint});
  const Outcome outcome = run_hone(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out)["eval_loss"];
}

TEST(Runs, AMergedAdapterEvaluatesAsTheAdapterBesideItsBase) {
  const Folder folder;
  const std::string model = make_model(folder);
  const Outcome outcome = train(folder, model, "lora",
                                {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]",
                                 "train_router=true", "num_train_epochs=4", "dtype=float32", "learning_rate=1e-2"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string data = (folder / "data.jsonl").string(), lora = (folder / "lora").string(),
                    merged = (folder / "merged").string();
  const Outcome merge = run_hone({"merge", "--model", model, "--adapter", lora, "--output", merged});
  ASSERT_EQ(merge.code, 0) << merge.err;
  EXPECT_NE(merge.out.find("checked: the bytes of all "), std::string::npos) << merge.out;
  EXPECT_EQ(merge.out.find("logits"), std::string::npos) << merge.out;
  // 5 % of the rows of each tensor: "W + scale · B A in 40 of 736 rows".
  const size_t product = merge.out.find(" B A in ");
  ASSERT_NE(product, std::string::npos) << merge.out;
  int sampled = 0, rows = 0;
  ASSERT_EQ(std::sscanf(merge.out.c_str() + product, " B A in %d of %d rows", &sampled, &rows), 2) << merge.out;
  EXPECT_GT(sampled, 0);
  EXPECT_GE(20 * sampled, rows);
  const double base = eval_loss(model, data), beside = eval_loss(model, data, lora);
  EXPECT_LT(beside, base - 0.1);
  // A mean over hundreds of tokens of sums in float32.
  EXPECT_NEAR(eval_loss(model, data, merged), beside, 1e-4);
}

TEST(Runs, LogitsAreComparedIfThatIsAsked) {
  const Folder folder;
  const std::string model = make_model(folder);
  ASSERT_EQ(train(folder, model, "lora", {"finetuning_type=lora", "max_steps=2", "learning_rate=1e-2"}).code, 0);
  const Outcome outcome = run_hone({"merge", "--model", model, "--adapter", (folder / "lora").string(), "--output",
                                    (folder / "merged").string(), "--compare-logits"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("merged in float32 they differ by"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("read again they differ by"), std::string::npos) << outcome.out;
}

TEST(Runs, AMergeThatDriftsWritesNothing) {
  const Folder folder;
  const std::string model = make_model(folder);
  ASSERT_EQ(train(folder, model, "lora", {"finetuning_type=lora", "max_steps=2", "learning_rate=1e-2"}).code, 0);
  const Outcome outcome = run_hone({"merge", "--model", model, "--adapter", (folder / "lora").string(), "--output",
                                    (folder / "merged").string(), "--tolerance", "0"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("merged in memory: the logits differ"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder / "merged"));
}

TEST(Runs, TheConfigurationOfInitTrainsUnchanged) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string data = folder.write("data.jsonl", progressions(40));
  for (const std::string method : {"lora", "full"}) {
    const std::string yaml = (folder / (method + ".yaml")).string();
    ASSERT_EQ(run_hone({"init", model, "--method", method, "--data", data, "--output", yaml}).code, 0);
    // The test changes only the output paths.
    const Outcome outcome =
        run_hone({"train", yaml, "output_dir=" + (folder / method).string(), "device=" + test_run().device});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out.find(" is called "), std::string::npos) << "init uses canonical names\n" << outcome.out;
    EXPECT_EQ(outcome.out.find(" has no effect"), std::string::npos) << outcome.out;
    EXPECT_TRUE(fs::exists(folder / method / (method == "lora" ? "adapter_model.safetensors" : "model.safetensors")));
  }
}

TEST(Runs, ChatsTrainFromATokenizerAndItsTemplate) {
  const Folder folder;
  const fs::path& fixtures = test_run().fixtures;
  const fs::path tokenizer = folder / "tokenizer";
  fs::create_directories(tokenizer);
  fs::copy_file(fixtures / "tokenizers/qwen3/tokenizer.json", tokenizer / "tokenizer.json");
  fs::copy_file(fixtures / "templates/chatml.jinja", tokenizer / "chat_template.jinja");
  folder.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  Json config = tiny_config();
  config["vocab_size"] = 151936;
  const std::string model = make_model(folder, config, tokenizer.string());
  std::string rows;
  for (int i = 0; i < 8; ++i) {
    const std::string number = std::to_string(i);
    rows += Json{{"messages",
                  {{{"role", "user"}, {"content", "Say " + number}}, {{"role", "assistant"}, {"content", number}}}}}
                .dump() +
            "\n";
  }
  const std::string data = folder.write("chat.jsonl", rows);
  const Outcome outcome = run_hone(train_arguments(
      model, data, folder / "out", {"finetuning_type=lora", "max_steps=1", "report_to=jsonl", "threads=2"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // Only the answer and its end token are supervised.
  EXPECT_NE(outcome.out.find("[[0<|im_end|>]]"), std::string::npos) << outcome.out;
  EXPECT_TRUE(fs::exists(folder / "out/tokenizer.json"));
}

TEST(Runs, ABaseModelLearnsChatsByATemplateThatIsBuiltIn) {
  const Folder folder;
  const fs::path tokenizer = folder / "tokenizer";
  fs::create_directories(tokenizer);
  fs::copy_file(test_run().fixtures / "tokenizers/qwen3/tokenizer.json", tokenizer / "tokenizer.json");
  folder.write("tokenizer/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  Json config = tiny_config();
  config["vocab_size"] = 151936;
  const std::string model = make_model(folder, config, tokenizer.string());
  const Json messages = {{{"role", "user"}, {"content", "Say 0"}}, {{"role", "assistant"}, {"content", "0"}}};
  const std::string data = folder.write("chat.jsonl", Json{{"messages", messages}}.dump() + "\n");
  for (const std::string method : {"lora", "full"}) {
    const fs::path out = folder / method;
    const Outcome outcome = run_hone(train_arguments(
        model, data, out, {"finetuning_type=" + method, "max_steps=1", "chat_template=chatml", "threads=2"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("[[0<|im_end|>]]"), std::string::npos) << outcome.out;
    EXPECT_TRUE(fs::exists(out / "chat_template.jinja"));
    std::vector<std::string> ask = {"generate", "--prompt", "Say 0", "--max-new-tokens", "1"};
    if (method == "lora") {
      ask.insert(ask.end(), {"--model", model, "--adapter", out.string()});
    } else {
      ask.insert(ask.end(), {"--model", out.string()});
    }
    EXPECT_EQ(run_hone(ask).code, 0) << method;
    ask.insert(ask.end(), {"--chat-template", "chatlm"});
    const Outcome unknown = run_hone(ask);
    EXPECT_EQ(unknown.code, 2);
    EXPECT_NE(unknown.err.find("'chatlm' is neither a file nor a template that is built in. Did you mean 'chatml'?"),
              std::string::npos)
        << unknown.err;
  }
}

/// Documents of 4 to 12 tokens, which fill packs of 64 tokens in many ways.
std::string short_rows(int rows) {
  PhiloxSequence random(7);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    Json ids = Json::array();
    const auto length = static_cast<int>(4 + random.below(9));
    for (int i = 0; i < length; ++i) ids.push_back((row + i * (1 + row % 3)) % 60);
    text += Json{{"input_ids", ids}}.dump() + "\n";
  }
  return text;
}

TEST(Runs, StepsQueuedFromRecordedGraphsHaveTheSameBits) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("short.jsonl", short_rows(400));
  const auto run = [&](const std::string& output, std::vector<std::string> options) {
    options.insert(options.end(), {"max_steps=12", "val_split=0", "save_steps=6"});
    const Outcome outcome = run_hone(train_arguments(model, data, folder / output, options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::vector<std::string> full = {"dtype=float32"}, lora = {"finetuning_type=lora", "lora_dropout=0.1",
                                                                   "lora_target_modules=[attention,all-experts]"};
  for (const auto& [name, options] : std::map<std::string, std::vector<std::string>>{{"full", full}, {"lora", lora}}) {
    const auto with = [&](const std::string& option) {
      std::vector<std::string> all = options;
      all.push_back(option);
      return all;
    };
    const std::string replaying = run(name + "-graphs", with("cuda_graphs=true")), report = "cuda_graphs: ";
    const size_t reported = replaying.find(report);
    if (on_gpu()) {
      // There are 36 micro-batches and updates. The updates alone give ten replays, and most packs are full.
      ASSERT_NE(reported, std::string::npos) << replaying;
      EXPECT_GE(std::stoi(replaying.substr(reported + report.size())), 18) << replaying;
      EXPECT_NE(replaying.find(" of 36 micro-batches and updates were replayed"), std::string::npos) << replaying;
    } else {
      EXPECT_EQ(reported, std::string::npos) << "a CPU has no graphs";
    }
    EXPECT_EQ(run(name + "-eager", with("cuda_graphs=false")).find(report), std::string::npos);
    const std::string weights = name == "full" ? "model.safetensors" : "adapter_model.safetensors";
    expect_same_file(folder / (name + "-graphs") / weights, folder / (name + "-eager") / weights);
    expect_same_file(folder / (name + "-graphs/checkpoint-6/training_state.safetensors"),
                     folder / (name + "-eager/checkpoint-6/training_state.safetensors"));
  }
}

TEST(Runs, AProfileIsATimeLineOfThreeSteps) {
  const Folder folder;
  const std::string data = folder.write("data.jsonl", progressions(40));
  const std::string model = make_model(folder);
  const auto steps_in_profile = [&](const char* output, const char* max_steps) {
    const Outcome outcome = run_hone(train_arguments(model, data, folder / output, {"profile=true", max_steps}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("moe_down backward"), std::string::npos) << outcome.out;
    const Json time_line = Json::parse(read_file(folder / output / "profile.json"));
    std::vector<std::string> steps;
    for (const Json& event : time_line["traceEvents"]) {
      if (event["ph"] != "X") continue;
      EXPECT_GE(event["ts"].get<double>(), 0) << event;
      EXPECT_GE(event["dur"].get<double>(), 0) << event;
      if (event["cat"] == "step") steps.push_back(event["name"]);
    }
    const Json stages = Json::parse(read_file(folder / output / "profile-stages.json"));
    EXPECT_EQ(stages["steps"], steps.size());
    EXPECT_GT(stages["tokens"].get<double>(), 0);
    double share = 0;
    for (const Json& group : stages["groups"]) share += group["share"].get<double>();
    EXPECT_NEAR(share, 1, 1e-6);
    for (const Json& op : stages["ops"]) EXPECT_GT(op["us_per_token"].get<double>(), 0) << op;
    EXPECT_NE(read_file(folder / output / "profile.json").find("thread 0"), std::string::npos)
        << "a lane for each thread";
    return steps;
  };
  EXPECT_EQ(steps_in_profile("long", "max_steps=9"), (std::vector<std::string>{"step 4", "step 5", "step 6"}));
  EXPECT_EQ(steps_in_profile("short", "max_steps=2"), (std::vector<std::string>{"step 1", "step 2"}));
}

TEST(Runs, AProfileOfAWholeRunIsThereAfterASignal) {
  const Folder folder;
  const std::string data = folder.write("data.jsonl", progressions(40)), model = make_model(folder);
  const auto steps_of = [&](const char* output) {
    const Json trace = Json::parse(read_file(folder / output / "profile.json"));
    std::vector<Json> steps;
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] == "X" && event["cat"] == "step") steps.push_back(event);
    }
    return steps;
  };
  const std::vector<std::string> all = {"profile=true", "profile_steps=0", "val_split=4", "eval_steps=3"};
  const auto with = [&](const char* more) {
    std::vector<std::string> options = all;
    options.emplace_back(more);
    return options;
  };
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "whole", with("max_steps=7"))).code, 0);
  EXPECT_EQ(steps_of("whole").size(), 7u);
  double end = 0;
  for (const Json& event : steps_of("whole")) {
    EXPECT_GE(event["ts"].get<double>(), end) << "steps come one after the other";
    end = event["ts"].get<double>() + event["dur"].get<double>();
  }
  Process process(train_arguments(model, data, folder / "stopped", with("max_steps=100000")));
  while (!fs::exists(folder / "stopped/profile.json") || fs::file_size(folder / "stopped/profile.json") < 100'000)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
  EXPECT_GT(steps_of("stopped").size(), 1u);
  EXPECT_EQ(Json::parse(read_file(folder / "stopped/profile-stages.json"))["steps"], steps_of("stopped").size());
}

struct MemoryUse {
  double planned = 0, peak = 0;
};

MemoryUse memory_of_two_steps(const Json& config, const std::string& method) {
  const Folder folder;
  const std::string model = make_model(folder, config), data = folder.write("data.jsonl", progressions(200));
  const std::vector<std::string> options = {method, "max_length=1024", "per_device_train_batch_size=1"};
  std::vector<std::string> estimate = {"estimate", model, "device=" + test_run().device, "--json"};
  estimate.insert(estimate.end(), options.begin(), options.end());
  const Outcome outcome = run_hone(estimate);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> train = train_arguments(model, data, folder / "out", {"max_steps=2", "save_strategy=no"});
  train.insert(train.end(), options.begin(), options.end());
  const Outcome run = run_hone(train);
  EXPECT_EQ(run.code, 0) << run.err;
  return {Json::parse(outcome.out)["configured"]["total"],
          read_json_lines(folder / "out/metrics.jsonl").back()["memory/max_alloc"]};
}

TEST(Runs, PeakMemoryIsWithinATenthOfTheEstimate) {
  Json small = tiny_config();
  small["max_position_embeddings"] = 1024;
  Json large = small;
  for (const auto& [key, value] : std::map<std::string, int64_t>{{"hidden_size", 256},
                                                                 {"moe_intermediate_size", 128},
                                                                 {"num_experts", 32},
                                                                 {"vocab_size", 16000},
                                                                 {"head_dim", 64}}) {
    large[key] = value;
  }
  for (const std::string method : {"finetuning_type=full", "finetuning_type=lora"}) {
    // Both values include the memory of the program and its libraries.
    const MemoryUse a = memory_of_two_steps(small, method), b = memory_of_two_steps(large, method);
    EXPECT_NEAR((b.peak - a.peak) / (b.planned - a.planned), 1.0, 0.1)
        << method << ": " << a.peak << " of " << a.planned << ", " << b.peak << " of " << b.planned;
    if (!on_gpu()) continue;
    EXPECT_LT(b.peak, b.planned) << method << ": what CUDA takes is planned for with room";
  }
}

TEST(Runs, ABatchTooLargeForTheMemoryIsRefusedOrHalved) {
  if (on_gpu()) GTEST_SKIP() << "would take most of the GPU's memory from everything beside it";
  const Folder folder;
  const std::string model = make_model(folder);
  // A terabyte of activations: reserved CPU memory that is not used costs nothing.
  const std::vector<std::string> large = {"per_device_train_batch_size=16777216", "gradient_accumulation_steps=1",
                                          "max_steps=1", "report_to=jsonl"};
  const Outcome refused = train(folder, model, "refused", large);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("it fits with gradient_checkpointing: true, per_device_train_batch_size: "),
            std::string::npos)
      << refused.err;
  std::vector<std::string> halving = large;
  halving.push_back("auto_find_batch_size=true");
  const Outcome halved = train(folder, model, "halved", halving);
  ASSERT_EQ(halved.code, 0) << halved.err;
  EXPECT_NE(halved.out.find("16777216 at once do not fit in memory"), std::string::npos) << halved.out;
  EXPECT_NE(read_file(folder / "halved/config.resolved.yaml").find("global_batch_size: 16777216"), std::string::npos);
}

TEST(Runs, ADryRunAndAValidationWriteNothing) {
  const Folder folder;
  const std::string model = make_model(folder);
  const Outcome dry = train(folder, model, "out", {"--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("steps would take about"), std::string::npos) << dry.out;
  std::vector<std::string> arguments = train_arguments(model, (folder / "data.jsonl").string(), folder / "out");
  arguments.front() = "validate";
  const Outcome valid = run_hone(arguments);
  EXPECT_EQ(valid.code, 0) << valid.err;
  EXPECT_NE(valid.out.find("valid: nothing was written"), std::string::npos) << valid.out;
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace hone
