#include "weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <sstream>

#include "core/thread_pool.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class CheckpointFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hone_checkpoint_" + std::to_string(getpid()));
    fs::remove_all(root_);
    for (const char* name : {"a", "b"}) fs::create_directories(root_ / name);
  }
  void TearDown() override { fs::remove_all(root_); }

  /// A checkpoint of random values in root/a.
  void make(const SaveOptions& options, DType dtype = DType::kF32) {
    ParameterStore store;
    testing::add_model(store, {.dtype = dtype});
    store.allocate(Device{});
    testing::fill(store, 5);
    save_parameters(root_ / "a", store, nullptr, nullptr, options);
  }
  /// One file with these float32 tensors, all ones.
  void write(const std::vector<SafetensorsWriter::Announced>& tensors) {
    SafetensorsWriter writer(root_ / "a/model.safetensors", tensors);
    for (const auto& tensor : tensors) {
      for (int64_t n = Shape{tensor.shape[0], tensor.shape[1]}.numel(); n > 0; --n) {
        const float one = 1.0f;
        writer.write_floats(tensor.dtype, &one, 1);
      }
    }
    writer.finish();
  }

  fs::path root_;
  ThreadPool pool_{2};
};

TEST_F(CheckpointFiles, LoadingAndSavingGivesTheSameBytes) {
  for (const DType file : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t shard : {int64_t{100}, int64_t{1} << 30}) {
      SCOPED_TRACE(std::string(name_of(file)) + " " + std::to_string(shard));
      TearDown();
      SetUp();
      const SaveOptions options{.max_shard_size = shard, .dtype = file};
      make(options);
      const Checkpoint source = Checkpoint::open(root_ / "a");
      ParameterStore store;  // trained in bfloat16 with float32 masters: nothing is lost
      testing::add_model(store, {.dtype = DType::kBF16});
      store.allocate(Device{});
      const CheckpointMap map = map_checkpoint(source, store);
      load_parameters(source, map, store, pool_);
      save_parameters(root_ / "b", store, &source, &map, {.max_shard_size = shard});
      size_t files = 0;
      for (const auto& entry : fs::directory_iterator(root_ / "a")) {
        EXPECT_EQ(contents(entry.path()), contents(root_ / "b" / entry.path().filename())) << entry.path();
        ++files;
      }
      EXPECT_EQ(files > 1, shard == 100);
    }
  }
}

TEST_F(CheckpointFiles, AMissingShardOrABrokenPromiseOfTheIndexIsNamed) {
  make({.max_shard_size = 100});
  const fs::path shard = *std::find_if(fs::directory_iterator(root_ / "a"), fs::directory_iterator(),
                                       [](const auto& e) { return e.path().extension() == ".safetensors"; });
  fs::remove(shard);
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "a"); }), HasSubstr(shard.filename().string()));
  std::ofstream(root_ / "a/model.safetensors.index.json") << R"({"weight_map":{"x":"../secret.safetensors"}})";
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "a"); }), HasSubstr("'x'"));
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "b"); }), HasSubstr("no weights"));
}

TEST_F(CheckpointFiles, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  ParameterStore store;
  store.add({"model.embed_tokens.weight", {3, 2}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  store.add({"q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  const auto error = [&] {
    return testing::user_error([&] { map_checkpoint(Checkpoint::open(root_ / "a"), store, {"mtp."}); });
  };
  const SafetensorsWriter::Announced embedding{"model.embed_tokens.weight", DType::kF32, {3, 2}};
  write({embedding});
  EXPECT_THAT(error(), HasSubstr("q.weight"));
  write({embedding, {"q.weight", DType::kF32, {2, 3}}});
  EXPECT_THAT(error(), HasSubstr("'q.weight' has the shape [2, 3]"));
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"k.weight", DType::kF32, {2, 2}}});
  EXPECT_THAT(error(), HasSubstr("k.weight"));
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"lm_head.weight", DType::kF32, {3, 2}}});
  EXPECT_EQ(error(), "");  // a tied head that says the same
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"lm_head.weight", DType::kF32, {2, 3}}});
  EXPECT_THAT(error(), HasSubstr("'lm_head.weight' differs"));
}

TEST_F(CheckpointFiles, CarriedTensorsAreWrittenBack) {
  ParameterStore store;
  store.add({"q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  store.allocate(Device{});
  write({{"q.weight", DType::kF32, {2, 2}}, {"mtp.x", DType::kF16, {3, 1}}});
  const Checkpoint source = Checkpoint::open(root_ / "a");
  const CheckpointMap map = map_checkpoint(source, store, {"mtp."});
  EXPECT_EQ(map.carried, std::vector<std::string>{"mtp.x"});
  load_parameters(source, map, store, pool_);
  save_parameters(root_ / "b", store, &source, &map, {});
  EXPECT_EQ(contents(root_ / "b/model.safetensors"), contents(root_ / "a/model.safetensors"));
}

TEST_F(CheckpointFiles, ABufferKeepsItsBytesInFilesOfAnotherDtype) {
  const std::string name = "model.layers.0.mlp.gate.e_score_correction_bias";
  const auto add = [&](ParameterStore& store) {
    testing::add_model(store, {.dtype = DType::kBF16});
    store.add({name, {3}, ParameterKind::kBuffer, 0, {}}, DType::kF32);
    store.allocate(Device{});
  };
  ParameterStore made, loaded;
  add(made);
  testing::fill(made, 5);
  save_parameters(root_ / "a", made, nullptr, nullptr, {.dtype = DType::kBF16});
  add(loaded);
  const Checkpoint source = Checkpoint::open(root_ / "a");
  const CheckpointMap map = map_checkpoint(source, loaded);
  load_parameters(source, map, loaded, pool_);
  EXPECT_EQ(testing::bytes_of(loaded.find(name)->value()), testing::bytes_of(made.find(name)->value()));
  save_parameters(root_ / "b", loaded, &source, &map, {.dtype = DType::kF16});
  const Checkpoint saved = Checkpoint::open(root_ / "b");
  EXPECT_EQ(saved.find(name)->entry->dtype, DType::kF32);
  EXPECT_EQ(saved.find("model.norm.weight")->entry->dtype, DType::kF16);
  std::vector<float> values(3);
  saved.find(name)->file->read_floats(*saved.find(name)->entry, 0, values.data(), 3);
  const float* want = made.find(name)->value().as<float>();
  EXPECT_EQ(values, (std::vector<float>{want, want + 3}));
}

TEST_F(CheckpointFiles, NumbersThatAreNotFiniteAreNotSaved) {
  ParameterStore store;
  store.add({"model.norm.weight", {3}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  store.find("model.norm.weight")->set_trainable(true);
  store.allocate(Device{});
  float* values = store.find("model.norm.weight")->value().as<float>();
  values[0] = 1, values[1] = 2, values[2] = std::numeric_limits<float>::infinity();
  try {
    save_parameters(root_ / "a", store, nullptr, nullptr, {.finite = true});
    FAIL() << "saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNumbersLost);
    EXPECT_NE(error.message().find("model.norm.weight"), std::string::npos);
  }
  EXPECT_FALSE(fs::exists(root_ / "a/model.safetensors"));
}

}  // namespace
}  // namespace hone
