#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <limits>
#include <sstream>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "formats/int8_weights.h"
#include "params/frozen_weights.h"
#include "params/store_testing.h"
#include "weights/checkpoint.h"
#include "weights/stored_tensor.h"

namespace hone {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string file_contents(const fs::path& path) {
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

  /// Writes a checkpoint of random values to root/a.
  void make(const SaveOptions& options, DType dtype = DType::kF32) {
    ParameterStore store;
    testing::add_model(store, {.dtype = dtype});
    store.allocate(Device{});
    testing::fill(store, 5);
    save_parameters(root_ / "a", store, nullptr, nullptr, options);
  }
  /// Writes one file with these float32 tensors, all ones.
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
      ParameterStore store;  // trained in bfloat16 with float32 masters: lossless
      testing::add_model(store, {.dtype = DType::kBF16});
      store.allocate(Device{});
      const CheckpointMap map = map_checkpoint(source, store);
      load_parameters(source, map, store, pool_);
      save_parameters(root_ / "b", store, &source, &map, {.max_shard_size = shard});
      size_t files = 0;
      for (const auto& entry : fs::directory_iterator(root_ / "a")) {
        EXPECT_EQ(file_contents(entry.path()), file_contents(root_ / "b" / entry.path().filename())) << entry.path();
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
  const auto no_weights = [&] { return testing::user_error([&] { Checkpoint::open(root_ / "b"); }); };
  EXPECT_THAT(no_weights(), AllOf(HasSubstr("no weights"), HasSubstr("hone download ORG/NAME")));
  fs::create_directories(root_ / "b");
  std::ofstream(root_ / "b/pytorch_model.bin");
  EXPECT_THAT(no_weights(), HasSubstr("pytorch_model.bin is not read (a pickle)"));
  std::ofstream(root_ / "b/model-q4.gguf");
  EXPECT_THAT(no_weights(), HasSubstr("model-q4.gguf is not read (GGUF)"));
}

TEST_F(CheckpointFiles, ShardsAreReadWithoutAnIndexWhereAllAreThere) {
  make({.max_shard_size = 100});
  const size_t tensors = Checkpoint::open(root_ / "a").tensors().size();
  fs::remove(root_ / "a/model.safetensors.index.json");
  EXPECT_EQ(Checkpoint::open(root_ / "a").tensors().size(), tensors);
  fs::copy(root_ / "a", root_ / "b");
  for (const auto& entry : fs::directory_iterator(root_ / "b")) {
    if (entry.path().filename().string().starts_with("model-00002-")) fs::remove(entry.path());
  }
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "b"); }), HasSubstr("shards, and no index"));
  fs::copy(fs::directory_iterator(root_ / "a")->path(), root_ / "a/old-00001-of-00001.safetensors");
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "a"); }), HasSubstr("shards of 2 models"));
}

TEST_F(CheckpointFiles, TwoAnswersToWhichFilesAreTheModelAreRefused) {
  make({.max_shard_size = 100});
  std::ofstream(root_ / "a/model.safetensors") << "of another save";
  const auto error = [&] { return testing::user_error([&] { Checkpoint::open(root_ / "a"); }); };
  EXPECT_THAT(error(), HasSubstr("model.safetensors beside model.safetensors.index.json"));
  fs::remove(root_ / "a/model.safetensors.index.json");
  EXPECT_THAT(error(), HasSubstr("model.safetensors beside model-00001-of-"));
}

TEST_F(CheckpointFiles, AnIndexOfOtherShardsNamesThoseThatAreThere) {
  make({.max_shard_size = 100});
  std::ofstream(root_ / "a/model.safetensors.index.json")
      << R"({"weight_map": {"x": "model-00001-of-00030.safetensors"}})";
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_ / "a"); }),
              AllOf(HasSubstr("names files that are not there (model-00001-of-00030.safetensors)"),
                    HasSubstr("it does not name (model-00001-of-")));
}

TEST_F(CheckpointFiles, ANumberThatIsNotFiniteIsNamedWithItsTensorAndFile) {
  for (const float lost : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    ParameterStore store, loaded;
    for (ParameterStore* each : {&store, &loaded}) {
      testing::add_model(*each, {.dtype = DType::kBF16});
      each->allocate(Device{});
    }
    testing::fill(store, 5);
    write_values(*store.find("model.norm.weight"), 1, &lost, 1);
    save_parameters(root_ / "a", store, nullptr, nullptr, {.dtype = DType::kBF16});
    const Checkpoint checkpoint = Checkpoint::open(root_ / "a");
    const std::string error =
        testing::user_error([&] { load_parameters(checkpoint, map_checkpoint(checkpoint, loaded), loaded, pool_); });
    EXPECT_THAT(error, AllOf(HasSubstr("'model.norm.weight' has a number that is not finite: element 1 is "),
                             HasSubstr("model.safetensors")));
  }
}

TEST_F(CheckpointFiles, LaterLayersAreCarried) {
  ParameterStore store;
  store.add({"model.layers.0.q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  const auto carried = [&](const std::string& name) {
    write({{"model.layers.0.q.weight", DType::kF32, {2, 2}}, {name, DType::kF32, {3, 1}}});
    const CarriedNames names = {.layers = "model.layers.", .num_layers = 1};
    return map_checkpoint(Checkpoint::open(root_ / "a"), store, names).carried;
  };
  EXPECT_THAT(carried("model.layers.1.eh_proj.weight"), ::testing::ElementsAre("model.layers.1.eh_proj.weight"));
  EXPECT_THAT(carried("model.layers.12.q.weight"), ::testing::ElementsAre("model.layers.12.q.weight"));
  for (const char* name : {"model.layers.0.k.weight", "model.layers.1x.k.weight", "model.layers.weight"}) {
    EXPECT_THAT(testing::user_error([&] { carried(name); }), HasSubstr(name));
  }
}

TEST_F(CheckpointFiles, TheSavedConfigPromisesTheLayersThatAreThere) {
  const auto saved = [&](const Json& config) {
    std::ofstream(root_ / "a/config.json") << config;
    copy_model_files(root_ / "a", root_ / "b");
    return read_json(root_ / "b/config.json");
  };
  const Json promising = {{"num_hidden_layers", 1}, {"num_nextn_predict_layers", 2}};
  write({{"model.layers.0.q.weight", DType::kF32, {2, 2}}});
  EXPECT_EQ(saved(promising)["num_nextn_predict_layers"], 0);
  EXPECT_EQ(saved(Json{{"text_config", {{"mtp_num_hidden_layers", 1}}}})["text_config"]["mtp_num_hidden_layers"], 0);
  write({{"model.layers.0.q.weight", DType::kF32, {2, 2}}, {"model.layers.1.enorm.weight", DType::kF32, {2, 1}}});
  EXPECT_EQ(saved(promising)["num_nextn_predict_layers"], 1);
  write({{"model.layers.0.q.weight", DType::kF32, {2, 2}}, {"mtp.layers.0.norm.weight", DType::kF32, {2, 1}}});
  EXPECT_EQ(saved(Json{{"mtp_num_hidden_layers", 1}})["mtp_num_hidden_layers"], 1);
}

TEST_F(CheckpointFiles, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  ParameterStore store;
  store.add({"model.embed_tokens.weight", {3, 2}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  store.add({"q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  const auto error = [&] {
    return testing::user_error([&] { map_checkpoint(Checkpoint::open(root_ / "a"), store, {{"mtp."}}); });
  };
  const SafetensorsWriter::Announced embedding{"model.embed_tokens.weight", DType::kF32, {3, 2}};
  write({embedding});
  EXPECT_THAT(error(), HasSubstr("q.weight"));
  write({embedding, {"q.weight", DType::kF32, {2, 3}}});
  EXPECT_THAT(error(), HasSubstr("'q.weight' has the shape [2, 3]"));
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"k.weight", DType::kF32, {2, 2}}});
  EXPECT_THAT(error(), HasSubstr("k.weight"));
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"lm_head.weight", DType::kF32, {3, 2}}});
  EXPECT_EQ(error(), "");  // a tied head that equals the embedding
  write({embedding, {"q.weight", DType::kF32, {2, 2}}, {"lm_head.weight", DType::kF32, {2, 3}}});
  EXPECT_THAT(error(), HasSubstr("'lm_head.weight' differs"));
}

TEST_F(CheckpointFiles, CarriedTensorsAreWrittenBack) {
  ParameterStore store;
  store.add({"q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  store.allocate(Device{});
  write({{"q.weight", DType::kF32, {2, 2}}, {"mtp.x", DType::kF16, {3, 1}}});
  const Checkpoint source = Checkpoint::open(root_ / "a");
  const CheckpointMap map = map_checkpoint(source, store, {{"mtp."}});
  EXPECT_EQ(map.carried, std::vector<std::string>{"mtp.x"});
  load_parameters(source, map, store, pool_);
  save_parameters(root_ / "b", store, &source, &map, {});
  EXPECT_EQ(file_contents(root_ / "b/model.safetensors"), file_contents(root_ / "a/model.safetensors"));
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
  EXPECT_EQ(testing::bytes_of(loaded.find(name)->value().whole()), testing::bytes_of(made.find(name)->value().whole()));
  save_parameters(root_ / "b", loaded, &source, &map, {.dtype = DType::kF16});
  const Checkpoint saved = Checkpoint::open(root_ / "b");
  EXPECT_EQ(saved.find(name)->entry->dtype, DType::kF32);
  EXPECT_EQ(saved.find("model.norm.weight")->entry->dtype, DType::kF16);
  std::vector<float> values(3);
  saved.find(name)->file->read_floats(*saved.find(name)->entry, 0, values.data(), 3);
  const float* want = made.find(name)->value().whole().as<float>();
  EXPECT_EQ(values, (std::vector<float>{want, want + 3}));
}

TEST_F(CheckpointFiles, NumbersThatAreNotFiniteAreNotSaved) {
  ParameterStore store;
  store.add({"model.norm.weight", {3}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  store.find("model.norm.weight")->set_trainable(true);
  store.allocate(Device{});
  float* values = store.find("model.norm.weight")->value().whole().as<float>();
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

// Loading experts into 8 bits: every file layout gives the same bytes as rounding the loaded float32 weights.

/// Experts of more than one piece of a file; borders of pieces are not borders of experts.
constexpr testing::StoreSizes kCheckpointSizes{.experts = 2, .hidden = 1088, .intermediate = 768};

class Int8Load : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hone_int8_load_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  /// Writes a checkpoint of random weights.
  template <class Add>
  void write(const Add& add, DType file) {
    ParameterStore store;
    add(store, DType::kF32);
    store.allocate(Device{}, true);
    testing::fill(store, 3);
    save_parameters(root_, store, nullptr, nullptr, {.dtype = file});
  }

  template <class Add>
  void expect_rounded(const Add& add) {
    const Checkpoint checkpoint = Checkpoint::open(root_);
    ParameterStore wide, narrow;
    add(wide, DType::kF32);
    add(narrow, DType::kBF16);
    hold_experts_in(narrow, int8_format(), "expert_weight_dtype");
    for (ParameterStore* store : {&wide, &narrow}) {
      for (Parameter& parameter : store->all()) parameter.set_trainable(false);
      store->allocate(Device{});
      load_parameters(checkpoint, map_checkpoint(checkpoint, *store), *store, pool_);
    }
    size_t experts = 0;
    for (size_t i = 0; i < wide.all().size(); ++i) {
      const Parameter &exact = wide.all()[i], &rounded = narrow.all()[i];
      if (rounded.value().format().dense()) continue;
      ++experts;
      std::vector<int8_t> q(static_cast<size_t>(exact.shape().numel()));
      std::vector<float> scales(static_cast<size_t>(rounded.value().stored().scales.numel()));
      quantize_panels(exact.value().whole().as<float>(), rounded.value().stored().scales.numel() / kInt8PanelRows,
                      exact.shape()[2], q.data(), scales.data());
      EXPECT_EQ(std::memcmp(q.data(), rounded.value().whole().data, q.size()), 0) << exact.name();
      EXPECT_EQ(
          std::memcmp(scales.data(), rounded.value().stored().scales.data, rounded.value().stored().scales.bytes()), 0)
          << exact.name();
      EXPECT_GT(*std::max_element(scales.begin(), scales.end()), 0.0f);
    }
    EXPECT_EQ(experts, 2u);
  }

  fs::path root_;
  ThreadPool pool_{2};
};

TEST_F(Int8Load, OfOneTensorForEachExpertAndOfStacks) {
  for (const bool separate : {true, false}) {
    for (const DType file : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::string(separate ? "separate " : "stacked ") + std::string(name_of(file)));
      const auto add = [&](ParameterStore& store, DType dtype) {
        testing::StoreSizes sizes = kCheckpointSizes;
        sizes.separate_files = separate;
        sizes.dtype = dtype;
        testing::add_experts(store, sizes, 0);
        store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, dtype);
      };
      write(add, file);
      expect_rounded(add);
    }
  }
}

/// Adds experts with the layout of gpt-oss files.
void add_transposed(ParameterStore& store, int64_t hidden, int64_t intermediate, DType dtype) {
  const std::string experts = "model.layers.0.mlp.experts.";
  store.add({experts + "gate_up_proj",
             {2, 2 * intermediate, hidden},
             ParameterKind::kExpertsGateUp,
             0,
             {},
             FileOrder::kTransposedInterleaved},
            dtype);
  store.add(
      {experts + "down_proj", {2, hidden, intermediate}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed},
      dtype);
}

TEST_F(Int8Load, OfTransposedStacksWithGateAndUpInTurn) {
  const auto add = [](ParameterStore& store, DType dtype) {
    add_transposed(store, kCheckpointSizes.hidden, kCheckpointSizes.intermediate, dtype);
  };
  write(add, DType::kBF16);
  expect_rounded(add);
}

/// Writes a file of these tensors with bytes that are not codes of NaN or infinity in any format.
void write_codes(const fs::path& folder, const std::vector<SafetensorsWriter::Announced>& tensors) {
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  PhiloxSequence random(11);
  for (const auto& tensor : tensors) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (tensor.dtype == DType::kF32) {
        const float scale = 0.5f + random.uniform();
        writer.write_floats(DType::kF32, &scale, 1);
      } else {
        const auto code = static_cast<std::byte>(random.below(127));
        writer.write(&code, 1);
      }
    }
  }
  writer.finish();
}

TEST_F(Int8Load, OfBlocksOfFloat8) {
  const testing::StoreSizes sizes{.experts = 2, .hidden = 128, .intermediate = 64};
  const auto add = [&](ParameterStore& store, DType dtype) {
    testing::StoreSizes typed = sizes;
    typed.dtype = dtype;
    testing::add_experts(store, typed, 0);
  };
  std::ofstream(root_ / "config.json")
      << R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 32]}})";
  std::vector<SafetensorsWriter::Announced> tensors;
  for (int e = 0; e < 2; ++e) {
    for (const char* part : {"w1", "w3", "w2"}) {
      const std::string name = fmt::format("model.layers.0.block_sparse_moe.experts.{}.{}.weight", e, part);
      const bool down = part == std::string("w2");
      const int64_t rows = down ? sizes.hidden : sizes.intermediate, columns = down ? sizes.intermediate : sizes.hidden;
      tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {rows, columns}, .float8_e4m3 = true});
      tensors.push_back({.name = name + "_scale_inv", .dtype = DType::kF32, .shape = {rows / 16, columns / 32}});
    }
  }
  write_codes(root_, tensors);
  expect_rounded(add);
}

TEST_F(Int8Load, OfMxfp4) {
  constexpr int64_t kHidden = 64, kIntermediate = 128;
  const auto add = [](ParameterStore& store, DType dtype) { add_transposed(store, kHidden, kIntermediate, dtype); };
  std::ofstream(root_ / "config.json") << R"({"quantization_config": {"quant_method": "mxfp4"}})";
  const std::string experts = "model.layers.0.mlp.experts.";
  std::vector<SafetensorsWriter::Announced> tensors;
  for (const auto& [name, out, in] :
       {std::tuple{"gate_up_proj", 2 * kIntermediate, kHidden}, {"down_proj", kHidden, kIntermediate}}) {
    tensors.push_back({.name = experts + name + "_blocks", .dtype = DType::kU8, .shape = {2, out, in / 32, 16}});
    tensors.push_back({.name = experts + name + "_scales", .dtype = DType::kU8, .shape = {2, out, in / 32}});
  }
  write_codes(root_, tensors);
  expect_rounded(add);
}

TEST_F(Int8Load, SizesThatDoNotFitAreNamed) {
  ParameterStore odd, dense;
  testing::add_model(odd, {.hidden = 64, .intermediate = 80});
  EXPECT_NE(testing::user_error([&] {
              hold_experts_in(odd, int8_format(), "key");
            }).find("160 x 64: int8 takes multiples of 64"),
            std::string::npos);
  dense.add({"q.weight", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  EXPECT_NE(testing::user_error([&] { hold_experts_in(dense, int8_format(), "key"); }).find("no routed experts"),
            std::string::npos);
}

TEST_F(Int8Load, WhatIsRoundedIsNeverSaved) {
  ParameterStore store;
  testing::add_experts(store, {.hidden = 64, .intermediate = 64}, 0);
  hold_experts_in(store, int8_format(), "key");
  store.allocate(Device{}, true);
  EXPECT_ANY_THROW(save_parameters(root_, store, nullptr, nullptr, {}));
}

TEST_F(CheckpointFiles, RowsThatAreAddedAreTheMean) {
  const std::vector<float> numbers = {1, 2, 3, 5, -4, 0.5f};  // [2, 3]
  SafetensorsWriter writer(root_ / "a/model.safetensors", {{"embed", DType::kF32, {2, 3}}});
  writer.write_floats(DType::kF32, numbers.data(), 6);
  writer.finish();
  std::ofstream(root_ / "a/config.json") << "{}";
  Checkpoint checkpoint = Checkpoint::open(root_ / "a");
  checkpoint.grow({"embed", "absent"}, 4);
  std::vector<std::string> missing;
  const auto stored = StoredTensor::find(checkpoint, {"embed", Shape{4, 3}}, missing);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->shape(), (std::vector<int64_t>{4, 3}));
  const std::vector<float> all = {1, 2, 3, 5, -4, 0.5f, 3, -1, 1.75f, 3, -1, 1.75f};
  ReadScratch scratch;
  for (int64_t first = 0; first < 12; ++first) {
    for (int64_t count = 1; first + count <= 12; ++count) {  // as ranks read their slices
      std::vector<float> read(static_cast<size_t>(count));
      stored->prefetch(first, count);
      stored->read(scratch, first, count, DType::kF32, reinterpret_cast<std::byte*>(read.data()));
      EXPECT_EQ(read, std::vector<float>(all.begin() + first, all.begin() + first + count));
    }
  }
  std::vector<BFloat16> narrow(12);
  stored->read(scratch, 0, 12, DType::kBF16, reinterpret_cast<std::byte*>(narrow.data()));
  EXPECT_EQ(static_cast<float>(narrow[11]), 1.75f);
  EXPECT_THROW(StoredTensor::find(checkpoint, {"embed", Shape{5, 3}}, missing), UserError);
}

}  // namespace
}  // namespace hone
