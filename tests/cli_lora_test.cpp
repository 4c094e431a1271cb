// Tests of adapters through the command line: exchange with PEFT, and resumed runs.
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "app/chat/chat_model_testing.h"
#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// Patterns, a subset of layers, and all modules that can be trained in full.
const std::vector<std::string> kMixed = {
    "finetuning_type=lora",
    "lora_r=4",
    "lora_target_modules=[attention,all-experts]",
    R"(lora_rank_pattern={"layers.1.*q_proj": 2, "v_proj": 6, "experts.*gate_proj": 1, "all-experts": 3})",
    R"(lora_alpha_pattern={"o_proj": 2, "experts.*up_proj": 9})",
    "lora_layers=[1]",
    "lora_init=gaussian",
    "lora_modules_to_save=[router,embed_tokens,lm_head]",
    "dtype=float32"};

double eval_loss(const std::string& model, const std::string& data, const std::string& adapter) {
  std::vector<std::string> arguments = {"eval",          "model=" + model, "datasets=" + data,
                                        "dtype=float32", "max_length=64",  "device=" + test_run().device,
                                        "--json"};
  if (!adapter.empty()) arguments.insert(arguments.end(), {"--checkpoint", adapter});
  const Outcome outcome = run_hone(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? Json::parse(outcome.out)["eval_loss"].get<double>() : NAN;
}

TEST(Lora, AnAdapterOfPeftWithPatternsHasItsLoss) {
  const fs::path fixture = test_run().fixtures / "peft_adapter";
  const Json expected = Json::parse(read_file(fixture / "expected.json"));
  const std::string model = (fixture / "model").string(), data = (fixture / "data.jsonl").string();
  // Means over 59 tokens of float32 losses.
  EXPECT_NEAR(eval_loss(model, data, ""), expected["base_loss"].get<double>(), 1e-5);
  EXPECT_NEAR(eval_loss(model, data, (fixture / "adapter").string()), expected["adapter_loss"].get<double>(), 1e-5);
}

TEST(Lora, AnAdapterOfPeftGoesOnAndKeepsItsPatterns) {
  const Folder folder;
  const fs::path fixture = test_run().fixtures / "peft_adapter";
  const Outcome outcome = run_hone(train_arguments(
      (fixture / "model").string(), (fixture / "data.jsonl").string(), folder / "out",
      {"adapter_name_or_path=" + (fixture / "adapter").string(), "max_steps=2", "learning_rate=0", "dtype=float32"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json config = Json::parse(read_file(folder / "out/adapter_config.json"));
  EXPECT_EQ(config["rank_pattern"],
            Json({{"model.layers.0.self_attn.q_proj", 2}, {"v_proj", 3}, {"experts.gate_up_proj", 1}}));
  EXPECT_EQ(config["alpha_pattern"], Json({{"o_proj", 3}, {"model.layers.1.mlp.experts.down_proj", 20}}));
  const SafetensorsFile before(fixture / "adapter/adapter_model.safetensors"),
      after(folder / "out/adapter_model.safetensors");
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const SafetensorsEntry& entry : before.entries()) {
    ASSERT_TRUE(after.find(entry.name)) << entry.name;
    EXPECT_EQ(before.read_floats(entry.name), after.read_floats(entry.name)) << entry.name;
  }
}

/// PEFT's all-linear adapts attention, experts and routers of a model of transformers 5.
TEST(Lora, AnAdapterOfPeftWithRoutersHasItsLossMergesAndGoesOn) {
  const Folder folder;
  const fs::path fixture = test_run().fixtures / "peft_router";
  const Json expected = Json::parse(read_file(fixture / "expected.json"));
  const std::string model = (test_run().fixtures / "goldens/qwen3_moe/model").string(),
                    data = (fixture / "data.jsonl").string(), adapter = (fixture / "adapter").string();
  EXPECT_NEAR(eval_loss(model, data, adapter), expected["adapter_loss"].get<double>(), 1e-5);
  const std::string merged = (folder / "merged").string();
  const Outcome merge = run_hone(
      {"merge", "--model", model, "--adapter", adapter, "--output", merged, "--dtype", "float32", "--compare-logits"});
  ASSERT_EQ(merge.code, 0) << merge.err;
  EXPECT_NEAR(eval_loss(merged, data, ""), expected["adapter_loss"].get<double>(), 1e-5);
  const auto train = [&](const std::string& out, const std::string& rate) {
    const Outcome outcome = run_hone(train_arguments(
        model, data, folder / out, {"adapter_name_or_path=" + adapter, "max_steps=2", rate, "dtype=float32"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  train("same", "learning_rate=0");
  train("trained", "learning_rate=1e-2");
  EXPECT_NEAR(eval_loss(model, data, (folder / "same").string()), expected["adapter_loss"].get<double>(), 1e-5);
  const SafetensorsFile before(fs::path(adapter) / "adapter_model.safetensors"),
      same(folder / "same/adapter_model.safetensors"), trained(folder / "trained/adapter_model.safetensors");
  const std::string key = "base_model.model.model.layers.1.mlp.gate.lora_B.weight";
  EXPECT_EQ(before.read_floats(key), same.read_floats(key));
  EXPECT_NE(before.read_floats(key), trained.read_floats(key));
  EXPECT_LT(eval_loss(model, data, (folder / "trained").string()), expected["adapter_loss"].get<double>());
}

/// Training, evaluation and generation read weights that stay in the model's files, and change by no bit.
TEST(Lora, FrozenWeightsInFilesChangeNoBit) {
  const Folder folder;
  fs::copy(test_run().fixtures / "goldens/qwen3_moe/model", folder / "model");
  folder.write("model/tokenizer.json", byte_tokenizer().dump());
  const std::string model = (folder / "model").string(),
                    data = (test_run().fixtures / "peft_router/data.jsonl").string();
  const std::string all_tensors = "stage3_param_persistence_threshold=0";
  const auto trained = [&](const std::string& where) {
    std::vector<std::string> options = kMixed;
    options.insert(options.end(), {"max_steps=3", "learning_rate=1e-2", "frozen_weights=" + where, all_tensors});
    const Outcome outcome = run_hone(train_arguments(model, data, folder / where, options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_file(folder / where / "adapter_model.safetensors");
  };
  EXPECT_EQ(trained("memory"), trained("file"));
  const auto answers = [&](const std::string& where) {
    const std::string adapter = (folder / "file").string();
    std::vector<std::string> texts;
    for (std::vector<std::string> line :
         std::vector<std::vector<std::string>>{{"eval", "model=" + model, "datasets=" + data, "max_length=64",
                                                "finetuning_type=lora", "--json", "--checkpoint", adapter},
                                               {"generate", "--model", model, "--adapter", adapter, "--prompt", "the",
                                                "--raw", "--max-new-tokens", "8"}}) {
      line.insert(line.end(), {"device=" + test_run().device, "dtype=float32", all_tensors, "frozen_weights=" + where});
      const Outcome outcome = run_hone(line);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      texts.push_back(outcome.out);
    }
    return texts;
  };
  EXPECT_EQ(answers("file"), answers("memory"));
  const Outcome full = run_hone(train_arguments(model, data, folder / "full", {"max_steps=1", "frozen_weights=file"}));
  EXPECT_EQ(full.code, 2) << full.out;
  EXPECT_NE(full.err.find("finetuning_type is full, which saves all weights"), std::string::npos) << full.err;
}

TEST(Lora, SettingsStatedBesideAnAdapterToContinueAreItsOwn) {
  const Folder folder;
  const fs::path fixture = test_run().fixtures / "peft_router";
  const std::string model = (test_run().fixtures / "goldens/qwen3_moe/model").string();
  const auto train = [&](std::vector<std::string> options) {
    options.insert(options.end(), {"adapter_name_or_path=" + (fixture / "adapter").string(), "max_steps=1"});
    return run_hone(train_arguments(model, (fixture / "data.jsonl").string(), folder / "out", options));
  };
  const Outcome other = train({"lora_r=8", "lora_alpha=32"});
  EXPECT_EQ(other.code, 2) << other.out;
  for (const char* said : {"lora_r is 8, and the adapter to continue has 4", "lora_alpha is 32", "has 8"}) {
    EXPECT_NE(other.err.find(said), std::string::npos) << other.err;
  }
  for (const auto& [option, key] : {std::pair("use_rslora=true", "use_rslora"),
                                    {"lora_dropout=0.1", "lora_dropout"},
                                    {"lora_target_modules=[attention]", "lora_target_modules"},
                                    {"lora_rank_pattern={\"q_proj\": 2}", "lora_rank_pattern"}}) {
    const Outcome outcome = train({option});
    EXPECT_EQ(outcome.code, 2) << option << outcome.out;
    EXPECT_NE(outcome.err.find(key), std::string::npos) << outcome.err;
  }
  const Outcome equal = train({"lora_r=4", "lora_alpha=8", "lora_dropout=0"});
  EXPECT_EQ(equal.code, 0) << equal.err;
}

/// A python with torch, transformers and peft, or "".
std::string python_with_peft() {
  const bool found = std::system("python3 -c 'import torch, transformers, peft' > /dev/null 2>&1") == 0;
  return found ? "python3" : "";
}

TEST(Lora, PeftLoadsAdaptersOfPatternsAndModulesSavedWhole) {
  const std::string python = python_with_peft();
  if (python.empty()) GTEST_SKIP() << "python3 on the PATH has no torch, transformers and peft to compare with";
  for (const bool tied : {false, true}) {
    const Folder folder;
    Json model_config = tiny_config();
    model_config["tie_word_embeddings"] = tied;
    const std::string model = make_model(folder, model_config), data = folder.write("data.jsonl", progressions(20));
    std::vector<std::string> options = kMixed;
    options.insert(options.end(), {"adapter_layout=target_parameters", "max_steps=20", "learning_rate=1e-2"});
    const Outcome outcome = run_hone(train_arguments(model, data, folder / "out", options));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string adapter = (folder / "out").string(), printed = (folder / "loss").string();
    const std::string command = python + " " HONE_SOURCE_DIR "/tools/peft_loss.py loss " + model + " " + adapter + " " +
                                data + " > " + printed + " 2> " + printed + ".err";
    ASSERT_EQ(std::system(command.c_str()), 0) << read_file(printed + ".err");
    const double ours = eval_loss(model, data, adapter), base = eval_loss(model, data, "");
    EXPECT_LT(ours, base - 0.3) << "it has learnt";
    EXPECT_NEAR(std::stod(read_file(printed)), ours, 1e-5) << "tied: " << tied;
  }
}

TEST(Lora, ARunOfPatternsAndModulesSavedWholeResumesToTheSameBits) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const auto train = [&](const std::string& output, std::vector<std::string> options) {
    options.insert(options.end(), kMixed.begin(), kMixed.end());
    options.push_back("lora_dropout=0.1");
    const Outcome outcome = run_hone(train_arguments(model, data, folder / output, options));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  };
  train("whole", {"max_steps=6", "save_steps=3"});
  train("parts", {"max_steps=3", "save_steps=3"});
  train("parts", {"max_steps=6", "save_steps=3", "resume=auto"});
  for (const char* name : {"adapter_model.safetensors", "checkpoint-6/training_state.safetensors"}) {
    EXPECT_TRUE(read_file(folder / "whole" / name) == read_file(folder / "parts" / name)) << name;
  }
}

TEST(Lora, AResumedRunHasTheBaseAndTheScalingThatItWasStoppedWith) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const auto train = [&](std::vector<std::string> options) {
    const std::vector<std::string> adapter = {"lora_r=4", "lora_target_modules=[attention]", "save_steps=2"};
    options.insert(options.begin(), adapter.begin(), adapter.end());
    return run_hone(train_arguments(model, data, folder / "out", options));
  };
  ASSERT_EQ(train({"max_steps=2"}).code, 0);
  Json other = Json::parse(read_file(fs::path(model) / "config.json"));
  other["rms_norm_eps"] = 1e-5;
  fs::copy(model, folder / "other");
  folder.write("other/config.json", other.dump());
  for (const auto& [option, text] :
       {std::pair{"model_name_or_path=" + (folder / "other").string(), "rms_norm_eps is 1e-05, was 1e-06"},
        {std::string("lora_alpha=99"), "lora_alpha is 99.0, was 8.0"},
        {std::string("use_rslora=true"), "use_rslora is true, was false"},
        {std::string("base_weight_dtype=nf4"), "the packed format of model.layers.*"},
        {std::string("finetuning_type=full"), "finetuning_type is full, was lora"}}) {
    std::vector<std::string> options = {"max_steps=4", "resume=auto", option};
    if (option == "finetuning_type=full") options.insert(options.end(), {"lora_r=null", "lora_target_modules=null"});
    const Outcome refused = train(options);
    EXPECT_EQ(refused.code, 2) << option;
    EXPECT_TRUE(contains(refused.err, text)) << option << refused.err;
    EXPECT_TRUE(contains(refused.err, "restore ")) << refused.err;
  }
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-2")) << "nothing is damaged";
  // The same base at another path, and another dropout, which is of the training.
  fs::rename(model, folder / "moved");
  const Outcome moved =
      train({"max_steps=4", "resume=auto", "model_name_or_path=" + (folder / "moved").string(), "lora_dropout=0.1"});
  EXPECT_EQ(moved.code, 0) << moved.err;
  // A checkpoint of an earlier version says nothing of its base.
  const fs::path checkpoint = folder / "out/checkpoint-4";
  Json state = Json::parse(read_file(checkpoint / "training_state.json"));
  state.erase("model");
  folder.write("out/checkpoint-4/training_state.json", state.dump());
  fs::remove(checkpoint / "hone_manifest.json");
  const Outcome old = train({"max_steps=6", "resume=auto", "model_name_or_path=" + (folder / "moved").string()});
  EXPECT_EQ(old.code, 0) << old.err;
  EXPECT_TRUE(contains(old.out + old.err, "checkpoint-4 does not say which base its adapter belongs to")) << old.err;
}

TEST(Lora, WhatIsTrainedWholeMergesWithTheAdapter) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(20));
  std::vector<std::string> options = kMixed;
  options.insert(options.end(), {"max_steps=20", "learning_rate=1e-2"});
  ASSERT_EQ(run_hone(train_arguments(model, data, folder / "out", options)).code, 0);
  const std::string adapter = (folder / "out").string(), merged = (folder / "merged").string();
  const Outcome merge = run_hone({"merge", "--model", model, "--adapter", adapter, "--output", merged});
  ASSERT_EQ(merge.code, 0) << merge.err;
  EXPECT_NEAR(eval_loss(merged, data, ""), eval_loss(model, data, adapter), 1e-5);
}

TEST(Lora, ExcludedModulesAreNotAdaptedAndTheFileSaysSo) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(20));
  const std::vector<std::string> options = {"finetuning_type=lora", "lora_target_modules=[all-linear,all-experts]",
                                            "exclude_modules=.*\\.(q|o)_proj|.*experts.*down_proj", "max_steps=2"};
  const Outcome outcome = run_hone(train_arguments(model, data, folder / "out", options));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json config = Json::parse(read_file(folder / "out/adapter_config.json"));
  EXPECT_EQ(config["exclude_modules"], ".*\\.(q|o)_proj|.*experts.*down_proj");
  for (const Json& target : config["target_modules"]) {
    EXPECT_TRUE(target != "q_proj" && target != "o_proj" && target != "down_proj") << target;
  }
  const SafetensorsFile file(folder / "out/adapter_model.safetensors");
  for (const char* excluded : {"q_proj", "o_proj", "down_proj"}) {
    for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(entry.name.find(excluded), std::string::npos);
  }
}

TEST(Lora, ARouterIsTrainedOrNotInEveryMethod) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(20));
  int number = 0;
  for (const bool freeze : {true, false}) {
    for (const std::string method : {"full", "lora"}) {
      const std::string out = "out" + std::to_string(number++), merged = out + "-merged";
      const Outcome outcome = run_hone(
          train_arguments(model, data, folder / out,
                          {"finetuning_type=" + method, freeze ? "freeze_router=true" : "freeze_router=false",
                           "router_aux_loss_coef=0.01", "max_steps=3", "dtype=float32", "learning_rate=1e-2"}));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      fs::path result = folder / out;
      if (method == "lora") {
        ASSERT_EQ(
            run_hone({"merge", "--model", model, "--adapter", result.string(), "--output", (folder / merged).string()})
                .code,
            0);
        result = folder / merged;
      }
      const SafetensorsFile before(fs::path(model) / "model.safetensors"), after(result / "model.safetensors");
      for (const char* layer : {"0", "1"}) {
        const std::string router = std::string("model.layers.") + layer + ".mlp.gate.weight",
                          attention = std::string("model.layers.") + layer + ".self_attn.q_proj.weight";
        EXPECT_EQ(before.read_floats(router) == after.read_floats(router), freeze) << method << " " << router;
        EXPECT_NE(before.read_floats(attention), after.read_floats(attention)) << method;
      }
    }
  }
}

TEST(Lora, WhatCannotBeIsRefusedInAFewLines) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(5));
  const auto refused = [&](const std::string& option, const std::string& with) {
    const Outcome outcome = run_hone(train_arguments(model, data, folder / "out", {"finetuning_type=lora", option}));
    EXPECT_EQ(outcome.code, 2) << option << outcome.out;
    EXPECT_NE(outcome.err.find(with), std::string::npos) << option << "\n" << outcome.err;
  };
  refused(R"(lora_rank_pattern={"q_porj": 2})", "Did you mean 'q_proj'");
  refused(R"(lora_rank_pattern={"q_proj": 2.5})",
          "lora_rank_pattern of 'q_proj' is 2.5: expected a whole number above 0");
  refused(R"(lora_alpha_pattern={"q_proj": "x"})", "expected a number above 0");
  refused("lora_rank_pattern=8", "lora_rank_pattern is '8'");
  refused("lora_layers=[9]", "the model has no layer 9: they are numbered from 0 to 1");
  refused("lora_layers=[last]", "'last' is neither a layer nor a range of layers");
  refused("lora_init=pissa", "known, not in this version");
  refused("lora_bias=all", "known, not in this version");
  refused("lora_modules_to_save=[norm]", "lora_modules_to_save");
  refused("trainable_parameters=[model.layers.0.self_attn.q_proj]", "would be trained beside the adapters");
}

}  // namespace
}  // namespace hone
