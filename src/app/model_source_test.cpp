#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "app/chat/chat_model_testing.h"
#include "app/estimate/estimate.h"
#include "app/inspect/inspect.h"
#include "app/model_source.h"
#include "core/base/error.h"
#include "core/files/environment_testing.h"
#include "models/hf_config.h"
#include "session/model_path.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A folder models/tiny that contains only a config.json.
class ModelSources : public testing::Test {
 protected:
  ModelSources()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_model_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "models/tiny");
    fs::copy_file(kChatModelCase / "model/config.json", folder_ / "models/tiny/config.json");
  }
  ~ModelSources() override { fs::remove_all(folder_); }

  static std::string error(const std::string& name) {
    try {
      find_model(name);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  static std::string resolve_error(const std::string& path) {
    try {
      resolve_model_path(path);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  static std::string printed(auto&& action) {
    testing::internal::CaptureStdout();
    EXPECT_EQ(action(), 0);
    return testing::internal::GetCapturedStdout();
  }

  const StatedVariable offline_{"HF_HUB_OFFLINE", "1"};
  fs::path folder_;
  const std::string tiny_ = (folder_ / "models/tiny").string();
};

/// A cache of the hub with the model org/tiny: its files are links to blobs, as the hub's programs make it.
class CachedModels : public ModelSources {
 protected:
  CachedModels() {
    fs::create_directories(model_ / "refs");
    fs::create_directories(model_ / "blobs");
    fs::create_directories(model_ / "snapshots" / kCommit);
    fs::rename(tiny_ + "/config.json", model_ / "blobs/1234");
    fs::create_symlink("../../blobs/1234", model_ / "snapshots" / kCommit / "config.json");
    std::ofstream(model_ / "snapshots" / kCommit / "model.safetensors") << "x";
    refer_to(kCommit);
    setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  }
  ~CachedModels() override { unsetenv("HF_HUB_CACHE"); }
  void refer_to(const std::string& text) const { std::ofstream(model_ / "refs/main", std::ios::trunc) << text; }

  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
  const fs::path model_ = folder_ / "hub/models--org--tiny";
};

TEST_F(CachedModels, AreReadThroughTheirLinks) {
  const fs::path snapshot = resolve_model_path("org/tiny");
  EXPECT_EQ(snapshot, model_ / "snapshots" / kCommit);
  EXPECT_EQ(HfConfig::read(snapshot).string_or("model_type", ""), "qwen3_moe");
  fs::create_directory_symlink(snapshot, folder_ / "link");
  EXPECT_EQ(HfConfig::read(resolve_model_path((folder_ / "link").string())).string_or("model_type", ""), "qwen3_moe");
}

TEST_F(CachedModels, ARefLeadsNowhereElse) {
  fs::create_directories(folder_ / "elsewhere");
  fs::copy_file(model_ / "blobs/1234", folder_ / "elsewhere/config.json");
  for (const std::string& ref :
       {std::string("../../../elsewhere"), (folder_ / "elsewhere").string(), std::string(".."), std::string("."),
        std::string(), std::string("not-here"), std::string(kCommit) + "/../../../../elsewhere"}) {
    refer_to(ref);
    EXPECT_THAT(resolve_error("org/tiny"), HasSubstr("the model 'org/tiny' is not in the cache")) << ref;
  }
}

TEST_F(CachedModels, AreWholeByTheirIndex) {
  const fs::path snapshot = model_ / "snapshots" / kCommit;
  fs::rename(snapshot / "model.safetensors", snapshot / "model-00001-of-00002.safetensors");
  std::ofstream(snapshot / "model.safetensors.index.json")
      << R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})";
  EXPECT_THAT(resolve_error("org/tiny"), HasSubstr("not complete in the cache"));
  EXPECT_EQ(resolve_model_path("org/tiny", ModelParts::kDescriptions), snapshot);
  EXPECT_FALSE(find_model("org/tiny").has_weights);
  std::ofstream(snapshot / "model-00002-of-00002.safetensors") << "x";
  EXPECT_EQ(resolve_model_path("org/tiny"), snapshot);
  EXPECT_EQ(resolve_model_path(std::string("org/tiny@") + kCommit), snapshot);
}

TEST_F(ModelSources, AreFoldersFilesAndNames) {
  EXPECT_FALSE(find_model(tiny_).has_weights);
  EXPECT_EQ(find_model(tiny_ + "/config.json").directory, tiny_);
  EXPECT_TRUE(find_model((kChatModelCase / "model").string()).has_weights);
  EXPECT_EQ(find_model("qwen3-30b-a3b").known_as, "qwen3-30b-a3b");
  EXPECT_EQ(find_model("Somebody/Qwen3-30B-A3B").known_as, "qwen3-30b-a3b");
}

TEST_F(ModelSources, AMistypedPathIsNotAnsweredWithADownload) {
  EXPECT_THAT(error((folder_ / "models/tin").string()),
              AllOf(HasSubstr("Did you mean 'tiny'?"), Not(HasSubstr("download"))));
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_THAT(error("models/tinny"), AllOf(HasSubstr("there is no such model folder"),
                                           HasSubstr("Did you mean 'tiny'?"), Not(HasSubstr("download"))));
  fs::current_path(before);
  EXPECT_THAT(error("Qwen/Qwen9-1B"), HasSubstr("hone download Qwen/Qwen9-1B"));
  EXPECT_THAT(error("qwen3-30b-a3"), HasSubstr("Did you mean 'qwen3-30b-a3b'"));
}

TEST_F(ModelSources, OtherFormsOfAModelAreNamedForWhatTheyAre) {
  const auto write = [&](const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << bytes;
    return (folder_ / name).string();
  };
  const std::string unnamed = write("ggufs/model", "GGUF\x03");
  for (const std::string& path : {unnamed, write("ggufs/tiny-q4.gguf", "")}) {
    EXPECT_THAT(error(path), AllOf(HasSubstr("GGUF files are not read"), HasSubstr("hone download"))) << path;
    EXPECT_THAT(resolve_error(path), HasSubstr("GGUF files are not read")) << path;
  }
  EXPECT_THAT(error((folder_ / "ggufs").string()), HasSubstr("GGUF files are not read"));
  write("adapter/adapter_config.json", "{}");
  EXPECT_THAT(error((folder_ / "adapter").string()), HasSubstr("the folder has an adapter, not a model"));
  EXPECT_THAT(resolve_error(write("models/some.txt", "text")), HasSubstr("a model is a folder, and this is a file"));
}

TEST_F(ModelSources, AnIdWhoseFolderIsHereIsPointedToIt) {
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "work/Qwen9-1B");
  fs::current_path(folder_ / "work");
  EXPECT_THAT(error("Qwen/Qwen9-1B"), HasSubstr("write ./Qwen9-1B"));
  fs::current_path(before);
}

TEST_F(ModelSources, MemoryIsPlannedAsWithTheWeightsThere) {
  const auto plan = [](const std::string& target) {
    EstimateOptions options;
    options.target = target;
    options.overrides = {"device=cpu", "max_length=64"};
    options.memory = int64_t{1} << 30;
    options.json = true;
    return Json::parse(printed([&] { return run_estimate(options); }));
  };
  const Json expected = plan((kChatModelCase / "model").string());
  EXPECT_EQ(plan(tiny_), expected);
  EXPECT_EQ(plan(tiny_ + "/config.json"), expected);
}

TEST_F(ModelSources, AreInspectedWithoutWeights) {
  const std::string page = printed([&] { return run_inspect({tiny_, true}); });
  EXPECT_THAT(page, AllOf(HasSubstr("no weights beside config.json"), HasSubstr("mlp.experts.gate_up_proj")));
  EXPECT_THAT(printed([&] {
                return run_inspect({"olmoe-7b-a1b", false});
              }),
              AllOf(HasSubstr("OlmoeForCausalLM"), HasSubstr("its files are not here")));
}

TEST(ModelSummary, NumbersInNamesBecomeStars) {
  EXPECT_EQ(glob_of("model.layers.12.mlp.experts.3.down_proj.weight"), "model.layers.*.mlp.experts.*.down_proj.weight");
  EXPECT_EQ(glob_of("w1.weight"), "w1.weight");
  EXPECT_EQ(glob_of("3"), "*");
  EXPECT_EQ(glob_of(""), "");
}

void fill(ParameterStore& store) {
  store.add({"model.embed_tokens.weight", {10, 4}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer) + ".";
    store.add({module + "mlp.gate.weight", {8, 4}, ParameterKind::kRouter, layer, {}}, DType::kF32);
    store.add({module + "mlp.experts.gate_up_proj", {8, 6, 4}, ParameterKind::kExpertsGateUp, layer, {}}, DType::kF32);
    store.add({module + "mlp.experts.down_proj", {8, 4, 3}, ParameterKind::kExpertsDown, layer, {}}, DType::kF32);
  }
}

TEST(ModelSummary, OnlyTheChosenExpertsAreActive) {
  ParameterStore store;
  fill(store);
  MoeConfig moe;
  moe.num_experts = 8;
  moe.num_experts_per_tok = 2;
  const std::vector<GroupCount> groups = count_groups(store, moe);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[2].group, "experts");
  EXPECT_EQ(groups[2].tensors, 4);
  EXPECT_EQ(groups[2].parameters, 2 * (8 * 6 * 4 + 8 * 4 * 3));
  EXPECT_EQ(groups[2].active, groups[2].parameters / 4);
  const GroupCount total = total_of(groups);
  EXPECT_EQ(total.parameters, 40 + 64 + groups[2].parameters);
  EXPECT_EQ(total.active, 40 + 64 + groups[2].active);
}

TEST(ModelSummary, PatternsCountTheLayersTheyMatch) {
  ParameterStore store;
  fill(store);
  const std::vector<NamePattern> patterns = name_patterns(store);
  ASSERT_EQ(patterns.size(), 4u);
  EXPECT_EQ(patterns[2].glob, "model.layers.*.mlp.experts.gate_up_proj");
  EXPECT_EQ(patterns[2].tensors, 2);
  EXPECT_EQ(patterns[2].shape, "[8, 6, 4]");
  // A pattern selects the parameters that it was made from.
  EXPECT_EQ(store.select({patterns[2].glob}, "freeze_parameters").size(), 2u);
}

}  // namespace
}  // namespace hone
