// Tests of verbs beside training, through the command line, with weights that ranks share or that are in host memory:
// the same answers and losses as one process gives with all weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "app/chat/chat_model_testing.h"
#include "program.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

Words operator+(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Shards and offloads tensors of any size.
const Words kAllTensors = {"--param-persistence-threshold", "0"};

/// Answers of the model of a reference case, with random weights.
class SharedAnswers : public ::testing::Test {
 protected:
  SharedAnswers() {
    write_chat_model(folder_ / "model");
    std::string rows;
    for (const char* prompt : {"hello", "a", "What is it?", "one two three four", "?"}) {
      rows += Json{{"prompt", prompt}}.dump() + "\n";
    }
    folder_.write("prompts.jsonl", rows);
  }

  Words model() const { return {"--model", (folder_ / "model").string(), "--threads", "1", "--device", "cpu"}; }
  Words generate(const Words& more) const { return Words{"generate"} + model() + more + kAllTensors; }
  /// The answers to the file of prompts.
  std::string answers(const Words& more, const Words& launcher = {}) const {
    const std::string output = (folder_ / "answers.jsonl").string();
    const Outcome outcome = run_hone(launcher +
                                     generate({"--input", (folder_ / "prompts.jsonl").string(), "--output", output,
                                               "--force", "--max-new-tokens", "12"}) +
                                     more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    return read_file(output);
  }

  /// What hone chat says in two turns.
  std::string conversation(const Words& more) const {
    std::string command = "printf 'hello\\nagain\\n' | " + hone_program();
    for (const std::string& word : Words{"chat"} + model() + Words{"--max-new-tokens", "8"} + kAllTensors + more) {
      command += " " + word;
    }
    const ShellOutcome outcome = run_shell(command);
    EXPECT_EQ(outcome.code, 0) << outcome.out;
    return outcome.out;
  }

  Folder folder_;
};

/// Two ranks as a launcher on two hosts starts them: the same arguments, each in a folder of its own.
TEST(RanksInOtherFolders, AnotherBaseModelIsRefused) {
  const Folder folder;
  const auto started = [&](const std::string& changed) {
    for (const char* rank : {"rank0", "rank1"}) {
      fs::remove_all(folder / rank);
      fs::create_directories(folder / rank);
      fs::copy(kChatModelCase / "model", folder / rank / "model", fs::copy_options::recursive);
      folder.write(std::string(rank) + "/data.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n");
    }
    if (!changed.empty()) {
      // The same config.json and names, and other values.
      std::fstream file(folder / "rank1/model" / changed, std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<std::streamoff>(fs::file_size(folder / "rank1/model" / changed));
      std::vector<char> half(static_cast<size_t>(size / 2), 1);
      file.seekp(size - static_cast<std::streamoff>(half.size()));
      file.write(half.data(), static_cast<std::streamsize>(half.size()));
    }
    return run_shell("exec 2>&1; cd " + (folder / "").string() +
                     "; for r in 0 1; do (cd rank$r && env RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
                     "LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
                     std::to_string(20000 + ::getpid() % 20000) + " timeout 100 " + hone_program() +
                     " train model_name_or_path=model datasets=data.jsonl output_dir=../out overwrite_output_dir=true "
                     "max_length=8 max_steps=1 global_batch_size=2 per_device_train_batch_size=1 lora_r=2 "
                     "save_strategy=no device=cpu threads=1) & pids=\"$pids $!\"; done; worst=0; "
                     "for p in $pids; do wait $p || worst=$?; done; exit $worst");
  };
  const ShellOutcome same = started("");
  EXPECT_EQ(same.code, 0) << same.out;
  const ShellOutcome other = started("model-00003-of-00006.safetensors");
  EXPECT_EQ(other.code, 2) << other.out;
  EXPECT_THAT(other.out, HasSubstr("rank 1 has another model than rank 0"));
}

TEST_F(SharedAnswers, AreThoseOfOneRank) {
  const std::string adapter = (kChatModelCase / "lora_experts_final").string();
  for (const Words& how :
       std::vector<Words>{{}, {"--temperature", "0.9", "--batch-size", "2"}, {"--adapter", adapter}}) {
    const std::string one = answers(how);
    EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 5) << one;
    for (const Words& ranks :
         std::vector<Words>{{"--ranks", "2"}, {"--ranks", "3"}, {"--ranks", "2", "--zero-stage", "0"}}) {
      EXPECT_EQ(answers(how + ranks), one) << ::testing::PrintToString(how + ranks);
    }
  }
  EXPECT_EQ(answers({}, {"launch", "-n", "7", "--device", "cpu", "--"}), answers({})) << "more ranks than prompts";
}

TEST_F(SharedAnswers, WaitForRoomInTheCache) {
  const std::string all_at_once = answers({});
  const Words one_page = {"--cache-tokens", "128"};
  EXPECT_EQ(answers(one_page), all_at_once);
  EXPECT_EQ(answers(one_page + Words{"--ranks", "2"}), all_at_once);
  const Outcome refused = run_hone(generate({"--prompt", "hello", "--cache-tokens", "9", "--max-new-tokens", "12"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("the cache holds 9 tokens, but a sequence may have 19\n  where: --cache-tokens"));
}

TEST_F(SharedAnswers, OfAPackedBaseAreThoseOfOneRank) {
  const Words packed = {"--base-weight-dtype", "nf4"};
  EXPECT_EQ(answers(packed + Words{"--ranks", "2"}), answers(packed));
  EXPECT_EQ(answers(packed + Words{"cpu_offload=params"}), answers(packed));
}

TEST_F(SharedAnswers, AreStreamedByTheFirstRankAlone) {
  const Words prompt = generate({"--prompt", "hello", "--max-new-tokens", "12"});
  const Outcome one = run_hone(prompt), two = run_hone(prompt + Words{"--ranks", "2"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(two.out, one.out);
  EXPECT_THAT(two.err, HasSubstr("12 tokens in"));
  EXPECT_EQ(two.err.find("tokens in"), two.err.rfind("tokens in")) << two.err;
}

TEST_F(SharedAnswers, AreTheSameWithWeightsInHostMemory) {
  const std::string one = answers({});
  for (const char* offload : {"params", "experts"}) EXPECT_EQ(answers({"--cpu-offload", offload}), one) << offload;
  EXPECT_EQ(answers({"--cpu-offload", "params", "--ranks", "2"}), one);
  EXPECT_EQ(conversation({"--cpu-offload", "params"}), conversation({}));
}

TEST_F(SharedAnswers, AreTheSameWithExpertsOnTheCpu) {
  const Words on_cpu = {"--experts-device", "cpu"}, two = {"--ranks", "2"};
  const std::string adapter = (kChatModelCase / "lora_experts_final").string();
  for (const Words& how : std::vector<Words>{{},
                                             {"--dtype", "bfloat16"},
                                             {"--dtype", "bfloat16", "--base-weight-dtype", "nf4"},
                                             {"--expert-weight-dtype", "nf4"},
                                             {"--adapter", adapter, "--temperature", "0.9"}}) {
    SCOPED_TRACE(::testing::PrintToString(how));
    const std::string one = answers(how);
    EXPECT_EQ(answers(how + on_cpu), one);
    EXPECT_EQ(answers(how + on_cpu + two), one);
    EXPECT_EQ(answers(how + on_cpu + two + Words{"--zero-stage", "0"}), one);
    EXPECT_EQ(answers(how + on_cpu + Words{"--cpu-offload", "params"}), one);
  }
  EXPECT_EQ(answers(on_cpu + Words{"--cpu-offload", "params", "--ranks", "3"}), answers({}));
  EXPECT_EQ(conversation(on_cpu), conversation({}));
  const Outcome chosen = run_hone(generate({"--prompt", "hello", "--experts-device", "auto"}));
  EXPECT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_THAT(chosen.err, HasSubstr("experts_device auto: gpu; the device is the CPU"));
}

TEST_F(SharedAnswers, AreTheSameWithSpreadExperts) {
  const std::string adapter = (kChatModelCase / "lora_experts_final").string();
  for (const Words& how : std::vector<Words>{
           {}, {"--base-weight-dtype", "nf4"}, {"--adapter", adapter, "--temperature", "0.9", "--batch-size", "2"}}) {
    const std::string one = answers(how);
    for (const Words& ranks : std::vector<Words>{{"--ranks", "2"},
                                                 {"--ranks", "2", "--zero-stage", "0"},
                                                 {"--ranks", "4"},  // five prompts, two groups
                                                 {"--ranks", "6", "--zero-stage", "0"}}) {
      EXPECT_EQ(answers(how + ranks + Words{"--expert-parallel-size", "2"}), one)
          << ::testing::PrintToString(how + ranks);
    }
    EXPECT_EQ(answers(how + Words{"--ranks", "8", "--expert-parallel-size", "8"}), one);
  }
}

TEST_F(SharedAnswers, EndWithTheErrorOfARank) {
  const auto refused = [&](const Words& more, const char* text) {
    const Outcome outcome = run_hone(generate({"--prompt", "hello"}) + more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  refused({"--ranks", "2", "--adapter", (kChatModelCase / "lora_dora_final").string()}, "which zero_stage 3 shards");
  refused({"--ranks", "2", "--top-p", "2"}, "top_p is 2");
  refused({"--cpu-offload", "optimizer"}, "use params or experts");
  refused({"--experts-device", "host"}, "experts_device");
  refused({"learning_rate=1"}, "does not know 'learning_rate=1'");
  refused({"--experts-device", "cpu", "--cpu-offload", "experts"}, "leave experts out there");
  refused({"--experts-device", "auto", "--ranks", "2"}, "write cpu or gpu");
  refused({"--expert-parallel-size", "2"}, "start a multiple of 2 ranks");
  refused({"--expert-parallel-size", "3", "--ranks", "3"}, "choose a divisor of 8");
  refused({"--expert-parallel-size", "2", "--ranks", "2", "--experts-device", "cpu"}, "leave one of the two out");
  refused({"--expert-parallel-size", "2", "--ranks", "2", "--cpu-offload", "params"}, "leave one of the two out");
  refused({"--zero-stage", "1", "--ranks", "2"}, "use 3, which shards the weights, or 0");
  refused({"zero_stage=1", "--ranks", "2"}, "use 3, which shards the weights, or 0");
  const Outcome other =
      run_hone(Words{"launch", "-n", "2", "--device", "cpu", "--"} + generate({"--prompt", "hello", "--ranks", "3"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("2 ranks have been started"));
}

TEST_F(SharedAnswers, EndWhereARankIsLost) {
  std::string rows;
  for (int i = 0; i < 20000; ++i) rows += Json{{"prompt", std::to_string(i)}}.dump() + "\n";
  const std::string many = folder_.write("many.jsonl", rows), output = (folder_ / "lost.jsonl").string();
  std::string command = hone_program();
  for (const std::string& word : generate({"--ranks", "2", "--input", many, "--output", output})) command += " " + word;
  // The ranks are the launcher's children; the second one is killed once both run.
  const ShellOutcome outcome =
      run_shell("timeout 120 sh -c '" + command +
                " & launcher=$!; sleep 4; kill -9 $(pgrep -P $launcher | tail -n 1); wait $launcher' 2>&1");
  EXPECT_EQ(outcome.code, 4) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("is lost"));
  EXPECT_FALSE(fs::exists(output));
}

TEST(AnswersOfInt8Experts, AreTheSameBesideTheDevice) {
  const Folder folder;
  Json config = tiny_config();
  config["hidden_size"] = config["moe_intermediate_size"] = 64;  // sizes that 8-bit experts support
  config["vocab_size"] = 320;
  const std::string model = make_model(folder, config);
  folder.write("model/tokenizer.json", byte_tokenizer().dump());
  const auto generate = [&](const Words& more) {
    return run_hone(Words{"generate", "--model", model, "--raw", "--prompt", "1 2 3", "--device", "cpu", "--threads",
                          "1", "--max-new-tokens", "12", "--expert-weight-dtype", "int8"} +
                    kAllTensors + more);
  };
  const Outcome one = generate({});
  EXPECT_EQ(one.code, 0) << one.err;
  for (const Words& how : std::vector<Words>{
           {}, {"--cpu-offload", "params"}, {"--ranks", "2"}, {"--ranks", "2", "--cpu-offload", "params"}}) {
    EXPECT_EQ(generate(how + Words{"--experts-device", "cpu"}).out, one.out) << ::testing::PrintToString(how);
  }
  const Outcome streamed = generate({"--cpu-offload", "params"});
  EXPECT_EQ(streamed.code, 2);
  EXPECT_THAT(streamed.err, HasSubstr("experts_device: cpu takes both"));
}

/// Evaluations of a tiny model, an adapter of it and a whole model, both trained for two steps.
class SharedEvaluation : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = make_model(folder_);
    data_ = folder_.write("data.jsonl", progressions(20));
    const Words steps = {"max_steps=2", "dtype=float32", "eval_strategy=no", "report_to=none"};
    const Words lora = {"finetuning_type=lora", "lora_target_modules=[attention,all-experts]",
                        "lora_modules_to_save=[router]"};
    for (const auto& [output, more] : std::map<std::string, Words>{{"full", {}}, {"lora", lora}}) {
      const Outcome trained = run_hone(train_arguments(model_, data_, folder_ / output, steps + more));
      ASSERT_EQ(trained.code, 0) << trained.err;
    }
  }

  Outcome run(const Words& more, int ranks) const {
    const Words launcher = {"launch", "-n", std::to_string(ranks), "--device", "cpu", "--"};
    const Outcome outcome =
        run_hone((ranks > 1 ? launcher : Words{}) +
                 Words{"eval", "model_name_or_path=" + model_, "datasets=" + data_, "dtype=float32", "max_length=32",
                       "packing=false", "per_device_eval_batch_size=3", "device=cpu", "threads=1",
                       "stage3_param_persistence_threshold=0", "--json"} +
                 more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
  Json evaluate(const Words& more, int ranks = 1) const {
    const Outcome outcome = run(more, ranks);
    return outcome.code == 0 ? Json::parse(outcome.out) : Json();
  }
  Words checkpoint(const char* name) const { return {"--checkpoint", (folder_ / name).string()}; }

  Folder folder_;
  std::string model_, data_;
};

/// Sums over micro-batches are float64, in another order.
void expect_same(const Json& ours, const Json& one) {
  ASSERT_FALSE(ours.is_null() || one.is_null());
  for (const char* part : {"base", "tuned"}) {
    if (one.contains(part)) expect_same(ours.at(part), one.at(part));
  }
  if (!one.contains("eval_loss")) return;
  EXPECT_NEAR(ours.at("eval_loss").get<double>(), one.at("eval_loss").get<double>(), 1e-12);
  EXPECT_NEAR(ours.at("eval_mean_token_accuracy").get<double>(), one.at("eval_mean_token_accuracy").get<double>(),
              1e-12);
  EXPECT_EQ(ours.at("num_supervised_tokens"), one.at("num_supervised_tokens"));
  EXPECT_EQ(ours.at("num_tokens"), one.at("num_tokens"));
}

TEST_F(SharedEvaluation, IsThatOfOneRank) {
  for (const Words& what : {Words{}, checkpoint("full"), checkpoint("lora"), checkpoint("lora") + Words{"--base"},
                            checkpoint("full") + Words{"--base", "--max-samples", "5"}}) {
    SCOPED_TRACE(::testing::PrintToString(what));
    const Json one = evaluate(what);
    expect_same(evaluate(what + Words{"zero_stage=3"}, 2), one);
    expect_same(evaluate(what + Words{"zero_stage=3", "cpu_offload=[params]"}, 2), one);
    EXPECT_EQ(evaluate(what + Words{"cpu_offload=[params]"}), one);
    EXPECT_EQ(evaluate(what + Words{"cpu_offload=[experts,optimizer,activations]"}), one);
  }
  const Json one = evaluate({});
  for (const char* stage : {"0", "1", "2", "3"}) {
    expect_same(evaluate({std::string("zero_stage=") + stage}, 3), one);
  }
  EXPECT_NE(evaluate(checkpoint("full")).at("eval_loss"), one.at("eval_loss"));
  EXPECT_NE(evaluate(checkpoint("lora")).at("eval_loss"), one.at("eval_loss"));
}

TEST_F(SharedEvaluation, MayHaveSpreadExperts) {
  for (const Words& what : {checkpoint("full"), checkpoint("lora")}) {
    const double one = evaluate(what).at("eval_loss");
    const Json spread = evaluate(what + Words{"expert_parallel_size=2", "zero_stage=3"}, 2);
    // Sums of a token's experts are float32, in another order.
    EXPECT_NEAR(spread.at("eval_loss").get<double>(), one, 1e-5 * one);
  }
}

TEST_F(SharedEvaluation, MayHaveExpertsOnTheCpu) {
  const Words on_cpu = {"experts_device=cpu"};
  for (const Words& what : {Words{}, checkpoint("full"), checkpoint("lora") + Words{"--base"}}) {
    SCOPED_TRACE(::testing::PrintToString(what));
    const Json one = evaluate(what + on_cpu);
    expect_same(evaluate(what + on_cpu, 2), one);
    expect_same(evaluate(what + on_cpu + Words{"cpu_expert_layers=1"}, 2), one);
    expect_same(evaluate(what + Words{"experts_device=auto"}, 2), evaluate(what));
    expect_same(evaluate(what + on_cpu + Words{"zero_stage=3"}, 3), one);
    EXPECT_THAT(run(what + on_cpu, 2).err, HasSubstr("of frozen weights, once for the 2 ranks of a host"));
  }
}

TEST_F(SharedEvaluation, IsReportedByTheFirstRankAlone) {
  const std::string output = (folder_ / "result.json").string();
  const Json printed = evaluate({"zero_stage=3", "--output", output}, 2);
  EXPECT_EQ(Json::parse(read_file(output)), printed);
  const Outcome wrong = run_hone({"launch", "-n", "2", "--device", "cpu", "--", "eval", "model_name_or_path=" + model_,
                                  "datasets=" + data_, "zero_stag=3"});
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("zero_stag"));
}

TEST_F(SharedAnswers, ToThePromptsOfAnEvaluationAreThoseOfOneRank) {
  const std::string data = folder_.write("data.jsonl", progressions(6)),
                    adapter = (kChatModelCase / "lora_attention_final").string();
  const auto samples = [&](const Words& launcher, const Words& more) {
    const Outcome outcome = run_hone(
        launcher +
        Words{"eval", "model_name_or_path=" + (folder_ / "model").string(), "datasets=" + data, "dtype=float32",
              "max_length=32", "device=cpu", "threads=1", "max_new_tokens=6", "stage3_param_persistence_threshold=0",
              "--checkpoint", adapter, "--base", "--output", (folder_ / "result.json").string(), "--prompts",
              (folder_ / "prompts.jsonl").string(), "--json"} +
        more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? Json::parse(outcome.out).at("samples") : Json();
  };
  const Json one = samples({}, {});
  EXPECT_EQ(one.size(), 5u);
  EXPECT_EQ(samples({"launch", "-n", "2", "--device", "cpu", "--"}, {"zero_stage=3"}), one);
  EXPECT_EQ(samples({"launch", "-n", "2", "--device", "cpu", "--"}, {"experts_device=cpu"}), one);
  EXPECT_EQ(samples({"launch", "-n", "4", "--device", "cpu", "--"}, {"expert_parallel_size=2", "zero_stage=3"}), one);
  EXPECT_EQ(samples({}, {"cpu_offload=[params]"}), one);
}

/// Samples that a run generates while it trains.
TEST(SamplesOfARun, AreTheSameWithWeightsInHostMemory) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(20));
  const auto generations = [&](const std::string& output, const Words& more) {
    const Outcome outcome = run_hone(
        train_arguments(model, data, folder / output,
                        Words{"max_steps=2", "dtype=float32", "eval_strategy=steps", "eval_steps=2", "val_split=6",
                              "generate_samples=true", "max_new_tokens=6", "stage3_param_persistence_threshold=0"} +
                            more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_file(folder / output / "generations.jsonl");
  };
  const std::string resident = generations("resident", {});
  EXPECT_NE(resident, "");
  EXPECT_EQ(generations("streamed", {"cpu_offload=[params,optimizer]"}), resident);
}

}  // namespace
}  // namespace hone
