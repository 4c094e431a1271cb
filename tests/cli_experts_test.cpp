// Experts on the CPU beside the device, through the command line: training, resuming, evaluation, samples and merging.
// Without a GPU, a second CPU stream computes them.
#include <gmock/gmock.h>

#include <cmath>
#include <utility>

#include "core/cpu/numa_testing.h"
#include "device_main.h"
#include "program.h"
#include "run_noise.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

class ExpertsOnTheCpu : public ::testing::Test {
 protected:
  ExpertsOnTheCpu()
      : model_(make_model(folder_, tiny_config())), data_(folder_.write("data.jsonl", progressions(40))) {}

  Outcome train(const std::string& output, std::vector<std::string> more) const {
    return train(model_, output, std::move(more));
  }
  Outcome train(const std::string& model, const std::string& output, std::vector<std::string> more) const {
    more.insert(more.begin(), {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]"});
    return run_hone(train_arguments(model, data_, folder_ / output, more));
  }
  static std::string done(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  double eval_loss(const std::string& model, std::vector<std::string> more) const {
    more.insert(more.begin(), {"eval", "model=" + model, "datasets=" + data_, "max_length=64", "--json",
                               "device=" + test_run().device, "dtype=float32"});
    const std::string printed = done(run_hone(more));
    return printed.empty() ? NAN : Json::parse(printed)["eval_loss"].get<double>();
  }
  std::string adapter_of(const std::string& run) const {
    return read_file(folder_ / run / "adapter_model.safetensors");
  }

  Folder folder_;
  std::string model_, data_;
};

TEST_F(ExpertsOnTheCpu, AStoppedRunGoesOnToTheSameBits) {
  const auto with = [](std::vector<std::string> options) {
    options.insert(options.end(), {"use_kt=true", "lora_dropout=0.1", "save_steps=3"});
    return options;
  };
  done(train("whole", with({"max_steps=6"})));
  done(train("parts", with({"max_steps=3"})));
  done(train("parts", with({"max_steps=6", "resume=auto"})));
  EXPECT_TRUE(adapter_of("whole") == adapter_of("parts"));
}

TEST_F(ExpertsOnTheCpu, AutoOfAResumedRunIsThePlaceOfTheStoppedOne) {
  const std::string log = (folder_ / "parts" / "run.log").string();
  done(train("parts", {"max_steps=2", "save_steps=2", "experts_device=cpu"}));
  done(train("parts", {"max_steps=4", "save_steps=2", "experts_device=auto", "resume=auto"}));
  EXPECT_NE(read_file(log).find("experts_device auto: cpu; as in the run that this one continues"), std::string::npos);
  done(train("whole", {"max_steps=4", "save_steps=2", "experts_device=cpu", "profile=true"}));
  const Json on_host = Json::parse(read_file(folder_ / "whole/profile-host-stages.json"));
  EXPECT_EQ(on_host["steps"], 3);
  EXPECT_EQ(on_host["groups"][0]["name"], "experts");
  EXPECT_GT(on_host["threads"], 0);
  EXPECT_NE(read_file(folder_ / "whole/profile-host.json").find("thread 0"), std::string::npos);
  EXPECT_TRUE(adapter_of("whole") == adapter_of("parts"));
  fs::remove(folder_ / "parts" / "config.resolved.yaml");
  done(train("parts", {"max_steps=6", "save_steps=2", "experts_device=auto", "resume=auto"}));
  EXPECT_NE(read_file(log).find("experts_device auto is chosen anew"), std::string::npos);
}

TEST_F(ExpertsOnTheCpu, OfSomeLayersGoOnToTheSameBits) {
  const auto with = [](std::vector<std::string> options) {
    options.insert(options.end(), {"experts_device=cpu", "n_cpu_moe=1", "cpu_offload=[experts]", "save_steps=2"});
    return options;
  };
  done(train("whole", with({"max_steps=4"})));
  done(train("parts", with({"max_steps=2"})));
  done(train("parts", {"max_steps=4", "save_steps=2", "experts_device=auto", "resume=auto"}));
  EXPECT_NE(read_file(folder_ / "parts/run.log")
                .find("experts_device auto: cpu, cpu_expert_layers: 1, cpu_offload: experts; as in the run"),
            std::string::npos);
  EXPECT_TRUE(adapter_of("whole") == adapter_of("parts"));
}

using TokenTiles = ExpertsOnTheCpu;

TEST_F(TokenTiles, OfAResumedRunAreThoseOfTheStoppedOne) {
  const std::vector<std::string> options = {"save_steps=2", "gradient_checkpointing=true"};
  const auto run = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    done(train(output, more));
    return read_file(folder_ / output / "config.resolved.yaml");
  };
  EXPECT_THAT(run("all", {"max_steps=4"}), HasSubstr("moe_token_tile: 0")) << "few tokens";
  run("whole", {"max_steps=4", "moe_token_tile=5"});
  run("parts", {"max_steps=2", "moe_token_tile=5"});
  EXPECT_THAT(run("parts", {"max_steps=4", "moe_token_tile=auto", "resume=auto"}), HasSubstr("moe_token_tile: 5"));
  EXPECT_TRUE(adapter_of("whole") == adapter_of("parts"));
  EXPECT_FALSE(adapter_of("whole") == adapter_of("all")) << "the sums of gradients have another order";
  fs::remove(folder_ / "parts" / "config.resolved.yaml");
  EXPECT_THAT(run("parts", {"max_steps=6", "resume=auto"}), HasSubstr("moe_token_tile: 0")) << "chosen anew";
}

TEST_F(TokenTiles, OfMlpsOfAResumedRunAreThoseOfTheStoppedOne) {
  Json config = tiny_config();
  config["model_type"] = "qwen3";
  config["architectures"] = {"Qwen3ForCausalLM"};
  const Folder dense;
  const std::string model = make_model(dense, config);
  const auto run = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.end(), {"finetuning_type=lora", "lora_r=4", "lora_target_modules=all-linear", "use_dora=true",
                             "lora_dropout=0.1", "save_steps=2"});
    done(run_hone(train_arguments(model, data_, folder_ / output, more)));
    return read_file(folder_ / output / "config.resolved.yaml");
  };
  EXPECT_THAT(run("all", {"max_steps=4"}), HasSubstr("mlp_token_tile: 0")) << "few tokens";
  run("whole", {"max_steps=4", "mlp_token_tile=5"});
  run("parts", {"max_steps=2", "mlp_token_tile=5"});
  EXPECT_THAT(run("parts", {"max_steps=4", "mlp_token_tile=auto", "resume=auto"}), HasSubstr("mlp_token_tile: 5"));
  EXPECT_TRUE(adapter_of("whole") == adapter_of("parts"));
  EXPECT_FALSE(adapter_of("whole") == adapter_of("all")) << "the sums of gradients have another order";
}

TEST_F(TokenTiles, OfMlpsAreRefusedWithoutThem) {
  const Outcome outcome = train("out", {"mlp_token_tile=64"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("mlp_token_tile is 64, but the model has no dense MLP and no shared expert"));
}

TEST_F(TokenTiles, AreRefusedWithoutExperts) {
  Json dense = tiny_config();
  dense["model_type"] = "qwen3";
  dense["architectures"] = {"Qwen3ForCausalLM"};
  const Folder other;
  const Outcome outcome =
      run_hone(train_arguments(make_model(other, dense), data_, folder_ / "out", {"moe_token_tile=64"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("moe_token_tile is 64, but the model has no experts"));
}

TEST_F(ExpertsOnTheCpu, EvaluationChoosesTheirPlace) {
  const Outcome outcome = run_hone({"eval", "model=" + model_, "datasets=" + data_, "max_length=64",
                                    "device=" + test_run().device, "experts_device=auto"});
  EXPECT_NE((done(outcome) + outcome.err).find("experts_device auto: gpu; "), std::string::npos) << outcome.err;
}

TEST_F(ExpertsOnTheCpu, LearnWhatThoseOnTheDeviceLearn) {
  const std::vector<std::string> options = {"max_steps=8", "learning_rate=1e-2", "dtype=float32"};
  const auto trained = [&](const std::string& where, const std::string& model, const std::string& output) {
    std::vector<std::string> all = options;
    all.push_back("experts_device=" + where);
    done(train(model, output, all));
    return eval_loss(model, {"--checkpoint", (folder_ / output).string()});
  };
  const double gpu = trained("gpu", model_, "gpu"), cpu = trained("cpu", model_, "cpu"),
               untrained = eval_loss(model_, {});
  EXPECT_LT(gpu, untrained - 0.1);
  const auto differs = [&](double loss) -> Differences { return {{"loss", 8, std::abs(loss - gpu), 1e-3}}; };
  const auto jittered = [&](uint64_t seed) {
    return differs(trained("gpu", jittered_model(model_, seed), "jittered" + std::to_string(seed)));
  };
  EXPECT_THAT(unexplained(differs(cpu), jittered), ::testing::IsEmpty());
  // The adapter does not depend on the place, nor does evaluation.
  EXPECT_NEAR(eval_loss(model_, {"--checkpoint", (folder_ / "gpu").string(), "experts_device=cpu"}), gpu, 1e-4);
  done(run_hone({"merge", "--model", model_, "--adapter", (folder_ / "cpu").string(), "--output",
                 (folder_ / "merged").string()}));
  EXPECT_NEAR(eval_loss((folder_ / "merged").string(), {}), cpu, 1e-4);
}

TEST_F(ExpertsOnTheCpu, TrainInEveryWay) {
  done(train("packed", {"max_steps=2", "experts_device=cpu", "base_weight_dtype=nf4"}));
  done(train("skipped", {"max_steps=2", "use_kt=true", "kt_backend=AMXBF16_SkipLoRA"}));
  done(run_hone(train_arguments(model_, data_, folder_ / "full", {"max_steps=2", "experts_device=cpu"})));
  done(train("chosen", {"max_steps=2", "experts_device=auto"}));
  const std::string log = read_file(folder_ / "chosen" / "run.log");
  EXPECT_NE(log.find("experts_device auto: gpu; "), std::string::npos) << log;
}

TEST_F(ExpertsOnTheCpu, LearnTheSameBitsOnSeveralNumaNodes) {
  const auto losses = [&](const std::string& run) {
    std::vector<double> values;
    for (const Json& line : read_json_lines(folder_ / run / "metrics.jsonl")) {
      if (line.contains("loss")) values.push_back(line["loss"].get<double>());
    }
    return values;
  };
  const auto trained = [&](const std::string& run, int nodes, std::vector<std::string> more) {
    const StatedNodes stated(nodes);
    more.insert(more.end(), {"max_steps=3", "experts_device=cpu", "threads=4", "logging_steps=1"});
    done(train(run, more));
    return losses(run);
  };
  for (const std::string format : {"auto", "nf4"}) {
    SCOPED_TRACE(format);
    const std::vector<double> one = trained(format + "1", 1, {"base_weight_dtype=" + format});
    EXPECT_EQ(one.size(), 3u);
    EXPECT_EQ(trained(format + "2", 2, {"base_weight_dtype=" + format}), one);
    EXPECT_TRUE(adapter_of(format + "1") == adapter_of(format + "2"));
  }
  EXPECT_NE(read_file(folder_ / "nf42" / "run.log").find("experts on the CPU: 2 NUMA nodes with 2 + 2 threads"),
            std::string::npos);
}

TEST_F(ExpertsOnTheCpu, AreThereOnceForTheRanksOfAHost) {
  const auto host = [](const std::vector<std::string>& ranks) {
    std::vector<std::string> arguments = {"estimate",
                                          "granite-3b-a800m",
                                          "device=cpu",
                                          "experts_device=cpu",
                                          "finetuning_type=lora",
                                          "lora_target_modules=[attention]",
                                          "max_length=32",
                                          "--json"};
    arguments.insert(arguments.end(), ranks.begin(), ranks.end());
    const std::string printed = done(run_hone(arguments));
    return printed.empty() ? NAN : Json::parse(printed)["configured"]["host"].get<double>();
  };
  const double one = host({}), two = host({"--ranks", "2"});
  EXPECT_GT(one, 5e9) << "bfloat16";
  EXPECT_NEAR(2 * two, one, 0.02 * one) << "of each rank";
  EXPECT_NEAR(host({"--ranks", "2", "--ranks-of-host", "1"}), one, 0.02 * one) << "on each of two hosts";
}

TEST_F(ExpertsOnTheCpu, IsRefusedWhereItDoesNotGo) {
  const auto expect_refused = [](const Outcome& outcome, const std::string& reason) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  };
  expect_refused(train("a", {"experts_device=cpu", "cuda_graphs=true"}), "leave cuda_graphs out");
  expect_refused(train("a", {"experts_device=cpu", "cpu_offload=[experts]"}), "cpu_expert_layers says for how many");
  expect_refused(train("a", {"cpu_expert_layers=1"}), "write experts_device: cpu beside it");
  expect_refused(train("a", {"offload_expert_layers=1"}), "add experts to cpu_offload");
  expect_refused(train("a", {"experts_device=auto", "cpu_offload=[params]"}), "leave experts and params out there");
  expect_refused(
      train("a", {"experts_device=cpu", "cpu_expert_layers=1", "cpu_offload=[experts]", "offload_expert_layers=99"}),
      "the experts of 99 layers are to be in host memory");
  expect_refused(train("a", {"experts_device=cpu", "cpu_expert_layers=99"}),
                 "the CPU is to compute the experts of 99 layers");
  expect_refused(train("a", {"experts_device=cpu", "cpu_expert_layers=1", "expert_weight_dtype=int8"}),
                 "or use expert_weight_dtype: fp8, nf4 or int4");
  expect_refused(run_hone({"bench", "step", "--model", "qwen3-8b", "--layers", "1", "--seq", "8", "--batch", "1",
                           "--device", test_run().device, "--experts-device", "cpu"}),
                 "the model has no routed experts");
}

}  // namespace
}  // namespace hone
