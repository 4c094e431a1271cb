// Tests of the command line: plans of memory.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

Json estimate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "estimate");
  arguments.push_back("--json");
  const Outcome outcome = run_hone(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(Estimate, CountsBytesByGroupFromHeaders) {
  const Folder folder;
  const std::string model = make_model(folder);
  int64_t parameters = 0;
  const SafetensorsFile file(model + "/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) parameters += entry.numel();
  const Json full = estimate({model, "--method", "full", "max_length=64"})["configured"];
  // Each tensor begins at a multiple of Arena::kAlignment.
  const auto expect_bytes = [&](const char* group, int64_t tensors, int64_t bytes) {
    const int64_t filling = tensors * static_cast<int64_t>(file.entries().size() * Arena::kAlignment);
    EXPECT_GE(full[group].get<int64_t>(), bytes) << group;
    EXPECT_LE(full[group].get<int64_t>(), bytes + filling) << group;
  };
  expect_bytes("weights", 1, 2 * parameters);
  expect_bytes("master", 1, 4 * parameters);
  expect_bytes("gradients", 1, 4 * parameters);
  expect_bytes("optimizer", 2, 8 * parameters);
  const Json lora = estimate({model, "--method", "lora", "max_length=64"})["configured"];
  EXPECT_LT(lora["optimizer"].get<int64_t>(), full["optimizer"].get<int64_t>());
  const Json longer = estimate({model, "--method", "full", "max_length=128"})["configured"];
  EXPECT_GT(longer["activations"].get<int64_t>(), full["activations"].get<int64_t>());
  const Json variants = estimate({model, "max_length=128"})["variants"];
  ASSERT_EQ(variants.size(), 6u);
  EXPECT_LT(variants[1]["activations"].get<int64_t>(), variants[0]["activations"].get<int64_t>()) << "checkpointing";
  EXPECT_LT(variants[5]["weights"].get<int64_t>(), variants[3]["weights"].get<int64_t>()) << "packed";
}

TEST(Estimate, TakesTokensInTilesWhereRowsOfExpertsAreMany) {
  const auto plan = [](const std::string& tile) {
    const Outcome outcome = run_hone({"estimate", "qwen3-30b-a3b", "--method", "lora", "--gpu", "h200",
                                      "max_length=131072", "gradient_checkpointing=true", "moe_token_tile=" + tile});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string note = "experts in tiles of 32768 tokens";
  EXPECT_NE(plan("auto").find(note), std::string::npos);
  EXPECT_EQ(plan("0").find(note), std::string::npos);
}

TEST(Estimate, TakesTokensInTilesWhereRowsOfMlpsAreMany) {
  const auto plan = [](const std::string& tile) {
    const Outcome outcome = run_hone({"estimate", "qwen3-8b", "--method", "lora", "--gpu", "h200", "max_length=131072",
                                      "gradient_checkpointing=true", "mlp_token_tile=" + tile});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string note = "MLPs in tiles of 21760 tokens";
  EXPECT_NE(plan("auto").find(note), std::string::npos);
  EXPECT_EQ(plan("0").find(note), std::string::npos);
}

TEST(Estimate, KeepsLayerInputsInAByteAnElement) {
  const auto planned = [](const std::string& dtype, std::vector<std::string> more) {
    more.insert(more.begin(), {"qwen3-30b-a3b", "--method", "lora", "--gpu", "h200", "max_length=131072",
                               "gradient_checkpointing=true", "layer_input_dtype=" + dtype});
    return estimate(more)["configured"];
  };
  // The embedding's output and those of 48 layers: bfloat16, or codes and a float32 scale for each 128.
  constexpr int64_t kElements = 131072 * 2048, kInputs = 49;
  constexpr int64_t kSaved = kInputs * (2 * kElements - (kElements + kElements / 128 * 4));
  const std::vector<std::string> offload = {"cpu_offload=[activations]"};
  const Json here = planned("dtype", {}), packed = planned("fp8", {});
  const Json there = planned("dtype", offload), packed_there = planned("fp8", offload);
  EXPECT_EQ(there["host"].get<int64_t>() - packed_there["host"].get<int64_t>(), kSaved);
  // On the device are the values of three layers: the place of one is the head's gradient's, as without; the two others
  // make room for the input of a layer in bfloat16, all but their scales.
  EXPECT_LE(packed_there["activations"].get<int64_t>(), there["activations"].get<int64_t>() + 2 * kElements / 128 * 4);
  // Backward has the input of one layer in bfloat16 beside.
  const int64_t saved = here["activations"].get<int64_t>() - packed["activations"].get<int64_t>();
  EXPECT_LE(saved, kSaved);
  EXPECT_GE(saved, kSaved - 2 * kElements);
  const Outcome text = run_hone({"estimate", "qwen3-30b-a3b", "--method", "lora", "--gpu", "h200", "max_length=131072",
                                 "gradient_checkpointing=true", "layer_input_dtype=fp8"});
  EXPECT_NE(text.out.find("recomputed in backward, layer inputs fp8"), std::string::npos) << text.out;
}

TEST(Estimate, SaysWhatTheRunWritesToDisk) {
  const Folder folder;
  const std::string model = make_model(folder);
  int64_t parameters = 0;
  const SafetensorsFile file(model + "/model.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) parameters += entry.numel();
  const auto disk = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {model, "max_length=64"});
    return estimate(more)["disk"];
  };
  const Json full = disk({"--method", "full", "dtype=float32"});
  EXPECT_EQ(full["model"], 4 * parameters);
  EXPECT_EQ(full["checkpoint"], 16 * parameters) << "with both moments and master weights";
  EXPECT_EQ(full["checkpoints_at_once"], 4) << "three that are kept, and the one that is written";
  EXPECT_EQ(full["total"], 68 * parameters);
  EXPECT_EQ(disk({"--method", "full", "dtype=float32", "--ranks", "2", "zero_stage=3"}), full);
  EXPECT_EQ(disk({"--method", "full", "dtype=float32", "max_steps=10", "save_steps=5"})["checkpoints_at_once"], 2);
  EXPECT_TRUE(disk({"save_total_limit=null"})["checkpoints_at_once"].is_null());
  EXPECT_EQ(disk({"save_strategy=no"})["checkpoint"], 0);
  EXPECT_EQ(disk({"--method", "lora", "dtype=float32", "merge_after_training=true"})["merged"], 4 * parameters);
  const std::string data = folder.write("data.jsonl", progressions(8));
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "out",
                                     {"finetuning_type=full", "dtype=float32", "max_steps=1", "save_steps=1"}))
                .code,
            0);
  int64_t written = 0;
  for (const char* name : {"model.safetensors", "training_state.safetensors"}) {
    const SafetensorsFile saved(folder / ("out/checkpoint-1/" + std::string(name)));
    for (const SafetensorsEntry& entry : saved.entries()) written += entry.numel() * 4;
  }
  EXPECT_EQ(full["checkpoint"], written);
  const Outcome text = run_hone({"estimate", model, "max_length=64", "--method", "lora"});
  EXPECT_NE(text.out.find("Disk: adapter "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("up to 4 at once"), std::string::npos) << text.out;
}

TEST(Estimate, OffloadsWhatIsLargeInTheRun) {
  const Folder folder;
  const std::string model = make_model(folder);
  const auto offloaded = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {model, "use_cpu_offload=true", "device=cuda", "--memory", "80GB"});
    return estimate(more)["configured"]["cpu_offload"];
  };
  EXPECT_EQ(offloaded({"--method", "full", "max_length=32", "gradient_checkpointing=true"}), Json({"optimizer"}));
  EXPECT_EQ(offloaded({"--method", "lora", "max_length=128", "per_device_train_batch_size=64",
                       "gradient_checkpointing=false"}),
            Json({"activations"}));
}

TEST(Estimate, SaysWhatDoesNotFitAndWhatWould) {
  const Folder folder;
  Json config = tiny_config();
  config["max_position_embeddings"] = 1 << 20;
  const std::string model = make_model(folder, config);
  // No machine can hold the activations of many samples of a million tokens, but shorter samples fit.
  const Outcome outcome = run_hone({"estimate", model, "max_length=1048576", "per_device_train_batch_size=512"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "does not fit")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "It fits with")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "per_device_train_batch_size: ")) << outcome.out;
}

TEST(Estimate, NamesTheFastestSettingThatFits) {
  const std::vector<std::string> run = {"granite-3b-a800m",
                                        "device=cpu",
                                        "max_length=512",
                                        "finetuning_type=lora",
                                        "lora_target_modules=attention",
                                        "per_device_train_batch_size=8"};
  const auto total = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    more.push_back("gradient_checkpointing=true");
    return estimate(more)["configured"]["total"].get<int64_t>();
  };
  const auto advice = [&](int64_t memory) {
    std::vector<std::string> words = {"estimate", "--memory", std::to_string(memory)};
    words.insert(words.end(), run.begin(), run.end());
    const Outcome outcome = run_hone(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const auto expect = [&](int64_t needed, const char* text) {
    const std::string said = advice(needed + needed / 1000);
    EXPECT_TRUE(contains(said, text)) << said;
  };
  expect(total({}), "It fits.");
  expect(
      total({"per_device_train_batch_size=2"}),
      "It fits with gradient_checkpointing: true, per_device_train_batch_size: 2 and gradient_accumulation_steps: 4");
  expect(total({"base_weight_dtype=nf4"}), "It fits with base_weight_dtype: nf4 and gradient_checkpointing: true");
}

TEST(Estimate, ChecksTheHostsMemoryToo) {
  const std::vector<std::string> host = {"estimate", "granite-3b-a800m", "device=cpu", "--host-memory", "1GB"};
  const Outcome of_cpu = run_hone(host);
  EXPECT_EQ(of_cpu.code, 2);
  EXPECT_TRUE(contains(of_cpu.err, "--host-memory")) << of_cpu.err;
  const std::vector<std::string> run = {
      "granite-3b-a800m",     "device=cuda",         "--memory", "24GB", "max_length=512",
      "finetuning_type=lora", "cpu_offload=[params]"};
  const auto with_host = [&](const char* memory) {
    std::vector<std::string> words = run;
    words.insert(words.end(), {"--host-memory", memory});
    return words;
  };
  const Json enough = estimate(with_host("16GB"));
  EXPECT_GT(enough["configured"]["host"], 5'000'000'000);
  EXPECT_EQ(enough["host_available"], 16'000'000'000);
  EXPECT_EQ(enough["verdict"], "It fits.");
  const Json little = estimate(with_host("1GB"));
  EXPECT_TRUE(contains(little["verdict"], "It fits with cpu_offload: []")) << little["verdict"];
  EXPECT_EQ(estimate(run)["host_available"], nullptr) << "of a machine that is not known";
}

TEST(Estimate, NamesTheStageWithWhichRanksHoldTheRun) {
  const Outcome outcome = run_hone({"estimate", "granite-3b-a800m", "device=cpu", "finetuning_type=full",
                                    "max_length=512", "--ranks", "8", "--memory", "24GB"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "does not fit")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "It fits with zero_stage: ")) << outcome.out;
}

TEST(Estimate, RefusesWhatNoMicroBatchCanBe) {
  const Folder folder;
  const Outcome outcome = run_hone({"estimate", make_model(folder), "per_device_train_batch_size=100000000"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.err, "more than a micro-batch can be")) << outcome.err;
}

TEST(Estimate, TakesAConfiguration) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string yaml = folder.write("run.yaml", "model_name_or_path: " + model + "\nlora_r: 4\nmax_length: 32\n");
  const Outcome outcome = run_hone({"estimate", yaml, "lora_r=8"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "LoRA r 8")) << outcome.out;
  // The value of an override before the configuration is not read as the configuration.
  const Outcome before = run_hone({"estimate", "--lora-r", "9", "--packing", yaml, "--max-length", "64"});
  ASSERT_EQ(before.code, 0) << before.err;
  EXPECT_TRUE(contains(before.out, "LoRA r 9")) << before.out;
}

TEST(Estimate, TakesTheConfigsOfReleasedModels) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_run().fixtures / "config/released")) {
    if (entry.path().extension() != ".json") continue;
    const std::string config = entry.path().string();
    const Json plan = estimate({config, "--method", "lora", "max_length=64"})["configured"];
    EXPECT_GT(plan["weights"].get<int64_t>(), int64_t{13'000'000'000}) << config;
    EXPECT_EQ(run_hone({"inspect", config}).code, 0) << config;
    ++files;
  }
  EXPECT_GE(files, 1);
}

TEST(Estimate, PlansForAGpuThatIsNotThere) {
  const Folder folder;
  const std::string model = make_model(folder);
  const Json planned = estimate({model, "device=cuda", "--memory", "80GB", "max_length=64"});
  EXPECT_EQ(planned["available"], 80'000'000'000);
  EXPECT_GT(planned["configured"]["libraries"], 0);
  const Json host = estimate({model, "device=cpu", "max_length=64"});
  EXPECT_EQ(planned["configured"]["optimizer"], host["configured"]["optimizer"]);
  const Outcome small = run_hone({"estimate", model, "device=cuda", "--memory", "600MB"});
  EXPECT_TRUE(contains(small.out, "No setting makes it fit")) << small.out;
}

/// A plan's scratch memory depends on the kernels of a GPU. Builds without CUDA have their sizes in *_absent.cpp, and
/// must plan the same. The file has for each command line the bytes of activations, which contain scratch, and the
/// total, of the configured run and of each variant; a change that is meant is recorded as this prints it.
TEST(Estimate, PlansForGpusAreThoseOfAnyOtherBuild) {
  const std::filesystem::path path = test_run().fixtures / "gpu_plans.json";
  const Json recorded = Json::parse(read_file(path));
  EXPECT_GE(recorded.size(), 6u);
  Json found = Json::object();
  for (const auto& [command, numbers] : recorded.items()) {
    std::istringstream words(command);
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    const Json plan = estimate(arguments);
    Json& row = found[command] = Json::array();
    const auto add = [&](const Json& variant) { row.push_back({variant["activations"], variant["total"]}); };
    add(plan["configured"]);
    for (const Json& variant : plan["variants"]) add(variant);
    EXPECT_EQ(row, numbers) << command;
  }
  if (found != recorded) std::cout << found.dump() << "\n";
}

TEST(Estimate, NoTwoMethodsAreTheSame) {
  const Folder folder;
  const std::string model = make_model(folder);
  for (const char* base : {"dtype", "nf4", "int8"}) {
    const Json plan =
        estimate({model, "finetuning_type=lora", "max_length=64", fmt::format("base_weight_dtype={}", base)});
    std::set<std::string> names, numbers;
    for (Json variant : plan["variants"]) {
      names.insert(variant["name"].get<std::string>());
      variant.erase("name");
      numbers.insert(variant.dump());
    }
    EXPECT_EQ(names.size(), plan["variants"].size()) << plan;
    EXPECT_EQ(numbers.size(), plan["variants"].size()) << plan;
  }
}

TEST(CommandLine, AGpuIsEstimatedByItsName) {
  const Folder folder;
  const std::string model = make_model(folder);
  const std::string refused = run_hone({"estimate", model, "--gpu", "none"}).err, list = "use one of ";
  ASSERT_TRUE(contains(refused, list)) << refused;
  std::istringstream names(refused.substr(refused.find(list) + list.size()));
  for (std::string gpu; names >> gpu && gpu != "or";) {
    if (gpu.back() == ',') gpu.pop_back();
    const Outcome outcome = run_hone({"estimate", model, "--gpu", gpu});
    EXPECT_EQ(outcome.code, 0) << gpu << ": " << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "kernels of tier sm")) << gpu << ": " << outcome.out;
  }
}

}  // namespace
}  // namespace hone
