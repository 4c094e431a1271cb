// Matrices of compressed-tensors and ModelOpt against the numbers that compressed-tensors makes of them
// (tools/make_compressed_fixture.py).
#include "weights/compressed_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <map>

#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "params/payload.h"
#include "params/store_testing.h"
#include "weights/stored_tensor.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kFiles = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/quantized";
const std::string kModule = "model.layers.0.";

std::string weight_of(const std::string& module) { return kModule + module + ".weight"; }

/// A parameter for each matrix of a fixture.
void add_model(ParameterStore& store, const SafetensorsFile& expected, DType dtype) {
  for (const SafetensorsEntry& entry : expected.entries()) {
    store.add({entry.name, {entry.shape[0], entry.shape[1]}, ParameterKind::kMlp, 0, {}}, dtype);
  }
}

class Compressed : public ::testing::TestWithParam<const char*> {};

TEST_P(Compressed, MatricesAreWhatTheLibraryMakesOfThem) {
  const fs::path folder = kFiles / GetParam();
  const SafetensorsFile expected(folder / "expected.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(folder);
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ParameterStore store;
    add_model(store, expected, dtype);
    store.allocate(Device{}, true);
    load_parameters(checkpoint, map_checkpoint(checkpoint, store, {{"model.norm"}}), store, pool);
    for (const Parameter& parameter : store.all()) {
      const std::vector<float> numbers = expected.read_floats(parameter.name());
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (dtype == DType::kF32) {
          // The library computes NVFP4 in bfloat16.
          const double tolerance = parameter.name() == weight_of("c.proj") ? 0x1p-8 : 2e-7;
          ASSERT_NEAR(parameter.value().whole().as<float>()[i], numbers[i], tolerance * std::fabs(numbers[i]))
              << parameter.name() << " " << i;
        } else {
          ASSERT_NEAR(static_cast<float>(parameter.value().whole().as<BFloat16>()[i]), numbers[i],
                      0x1p-8 * std::fabs(numbers[i]))
              << parameter.name() << " " << i;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Of, Compressed, ::testing::Values("compressed", "modelopt"),
                         [](const auto& made) { return std::string(made.param); });

/// Elements from the middle of a row on, as threads read them.
TEST(CompressedMatrix, PartsAreThoseOfTheWhole) {
  const SafetensorsFile expected(kFiles / "compressed/expected.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(kFiles / "compressed");
  for (const SafetensorsEntry& entry : expected.entries()) {
    std::vector<std::string> missing;
    const auto stored =
        StoredTensor::find(checkpoint, {entry.name, {entry.shape[0], entry.shape[1]}, 0, FileOrder::kSame}, missing);
    ASSERT_TRUE(stored && missing.empty()) << entry.name;
    const int64_t count = entry.numel();
    std::vector<float> whole(static_cast<size_t>(count)), parts(static_cast<size_t>(count));
    ReadScratch scratch;
    stored->read(scratch, 0, count, DType::kF32, reinterpret_cast<std::byte*>(whole.data()));
    for (int64_t first = 0; first < count; first += 31) {
      stored->read(scratch, first, std::min<int64_t>(31, count - first), DType::kF32,
                   reinterpret_cast<std::byte*>(parts.data() + first));
    }
    EXPECT_EQ(parts, whole) << entry.name;
  }
}

TEST(CompressedMatrix, CodesStayAsTheyAreWhereAPackedFormatIsTheSame) {
  const SafetensorsFile expected(kFiles / "compressed/expected.safetensors");
  const Checkpoint checkpoint = Checkpoint::open(kFiles / "compressed");
  ParameterStore store;
  add_model(store, expected, DType::kBF16);
  std::map<std::string, const PackedFormat*> formats;
  for (Parameter& parameter : store.all()) {
    std::vector<std::string> missing;
    const auto stored = StoredTensor::find(checkpoint, parameter.spec().all_layouts().front().front(), missing);
    const PackedFormat* const format = formats[parameter.name()] = stored->packed_format();
    if (format == nullptr) continue;
    parameter.set_trainable(false);
    parameter.value().hold_in(*format);
    EXPECT_TRUE(stored->has_chunks(packed_layout(parameter))) << parameter.name();
  }
  EXPECT_EQ(formats[weight_of("self_attn.q_proj")], &int4_format(32)) << "Kimi-K2's";
  EXPECT_EQ(formats[weight_of("self_attn.k_proj")], &int4_format(128));
  EXPECT_EQ(formats[weight_of("self_attn.v_proj")], nullptr) << "zero points";
  EXPECT_EQ(formats[weight_of("self_attn.o_proj")], nullptr) << "float32 scales";
  EXPECT_EQ(formats[weight_of("mlp.gate_proj")], &packed_int8_format()) << "words of 8 bits";
  EXPECT_EQ(formats[weight_of("mlp.up_proj")], &packed_int8_format()) << "bytes";
  EXPECT_EQ(formats[weight_of("mlp.down_proj")], &fp8_format());
  EXPECT_EQ(formats[weight_of("a.proj")], &fp8_rows_format());
  EXPECT_EQ(formats[weight_of("b.proj")], &fp8_rows_format()) << "one scale, that of each row";
  EXPECT_EQ(formats[weight_of("c.proj")], nullptr) << "NVFP4";
  EXPECT_EQ(formats[weight_of("d.proj")], &mxfp4_format());
  store.allocate(Device{}, true);
  ThreadPool pool(2);
  load_parameters(checkpoint, map_checkpoint(checkpoint, store, {{"model.norm"}}), store, pool);
  for (const Parameter& parameter : store.all()) {
    if (!parameter.value().packed()) continue;
    const std::vector<float> numbers = expected.read_floats(parameter.name());
    std::vector<float> values(numbers.size());
    unpack(packed_layout(parameter), parameter.value().stored().payload.data, 0, parameter.shape().numel(),
           values.data());
    EXPECT_EQ(values, numbers) << parameter.name();
  }
}

/// A folder of its own with tensors of the fixture, some of them changed.
class ChangedFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }

  using Change = std::function<void(SafetensorsWriter::Announced&)>;

  /// What loading says of the fixture's q_proj and c.proj, after `change` of each announced tensor. One without a name
  /// is left out.
  std::string error(const Change& change, const std::string& config = {}) {
    const SafetensorsFile source(kFiles / "compressed/model.safetensors");
    std::vector<SafetensorsWriter::Announced> tensors;
    for (const SafetensorsEntry& entry : source.entries()) {
      if (!entry.name.starts_with(kModule + "self_attn.q_proj") && !entry.name.starts_with(kModule + "c.")) continue;
      SafetensorsWriter::Announced tensor{entry.name, entry.dtype, entry.shape, entry.float8_e4m3};
      change(tensor);
      if (!tensor.name.empty()) tensors.push_back(tensor);
    }
    fs::copy_file(kFiles / "compressed/config.json", root_ / "config.json", fs::copy_options::overwrite_existing);
    if (!config.empty()) std::ofstream(root_ / "config.json") << R"({"quantization_config": )" << config << "}";
    SafetensorsWriter writer(root_ / "model.safetensors", tensors);
    for (const SafetensorsWriter::Announced& tensor : tensors) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
      const SafetensorsEntry* const entry = source.find(tensor.name);
      if (entry && entry->bytes == bytes.size()) source.read(*entry, 0, bytes.data(), bytes.size());
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
    ParameterStore store;
    store.add({weight_of("self_attn.q_proj"), {24, 128}, ParameterKind::kMlp, 0, {}}, DType::kF32);
    store.add({weight_of("c.proj"), {6, 64}, ParameterKind::kMlp, 0, {}}, DType::kF32);
    return testing::user_error([&] { map_checkpoint(Checkpoint::open(root_), store); });
  }

  fs::path root_ = fs::temp_directory_path() / ("hone_compressed_" + std::to_string(getpid()));
};

TEST_F(ChangedFile, AContradictionIsNamed) {
  const std::string q = weight_of("self_attn.q_proj"), c = weight_of("c.proj");
  EXPECT_EQ(error([](auto&) {}), "");
  const auto without = [&](const std::string& name) {
    return error([&](auto& tensor) { tensor.name = tensor.name == name ? "" : tensor.name; });
  };
  EXPECT_THAT(without(q + "_scale"), HasSubstr("lacks 1 of the model's tensors: " + q + "_scale"));
  EXPECT_THAT(without(q + "_shape"), HasSubstr(q + "_shape"));
  EXPECT_THAT(without(c + "_global_scale"), HasSubstr(c + "_global_scale"));
  const auto with = [&](const std::string& name, DType dtype, std::vector<int64_t> shape) {
    return error([&](auto& tensor) {
      if (tensor.name == name) tensor = {name, dtype, shape};
    });
  };
  EXPECT_THAT(with(q + "_scale", DType::kBF16, {24, 5}), HasSubstr("its scales have the shape [24, 5]"));
  EXPECT_THAT(with(q + "_scale", DType::kI32, {24, 4}), HasSubstr("its scales are int32"));
  EXPECT_THAT(with(q + "_packed", DType::kI32, {24, 17}), HasSubstr("17 words a row for 128 columns"));
  EXPECT_THAT(with(q + "_packed", DType::kI32, {23, 16}), HasSubstr("its codes have 23 rows"));
  EXPECT_THAT(with(q + "_packed", DType::kF32, {24, 16}), HasSubstr("its codes are float32"));
  EXPECT_THAT(with(q + "_shape", DType::kI64, {3}), HasSubstr("not two numbers"));
  EXPECT_THAT(with(c + "_packed", DType::kU8, {6, 16}), HasSubstr("is a quantised matrix of [6, 32]"));
  EXPECT_THAT(with(c + "_global_scale", DType::kF32, {2}), HasSubstr("not one float32 number"));
  EXPECT_THAT(error([&](auto& tensor) {
                if (tensor.name == q + "_shape") tensor = {q + "_g_idx", DType::kI32, {128}};
              }),
              HasSubstr("actorder"));
}

TEST_F(ChangedFile, OtherFormatsAreRefusedByName) {
  const auto refusal = [&](const std::string& config) { return error([](auto&) {}, config); };
  EXPECT_THAT(refusal(R"({"quant_method": "compressed-tensors", "format": "marlin-24"})"), HasSubstr("marlin-24"));
  EXPECT_THAT(refusal(R"({"quant_method": "compressed-tensors", "quantization_status": "frozen"})"),
              HasSubstr("quantization_status"));
  EXPECT_THAT(refusal(R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"a": {}}}})"),
              HasSubstr("transform_config"));
  EXPECT_THAT(refusal(R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}})"),
              HasSubstr("sparsity_config"));
  EXPECT_THAT(refusal(R"({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})"), HasSubstr("W4A8_AWQ"));
  EXPECT_EQ(refusal(R"({"quant_method": "compressed-tensors", "transform_config": {}, "sparsity_config": {}})"), "");
}

/// What is known of weights from config.json alone.
TEST(CompressedConfig, TellsWhichWeightsArePacked) {
  const Json kimi = Json::parse(R"({"text_config": {"quantization_config": {
      "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
      "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
      "config_groups": {"group_0": {"weights": {
          "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}}}})");
  const std::optional<Quantization> quantization = read_quantization(kimi, "config.json");
  ASSERT_TRUE(quantization);
  EXPECT_EQ(quantization->packed_format("model.layers.3.mlp.experts.gate_up_proj", true), &int4_format(32));
  EXPECT_EQ(quantization->packed_format("model.layers.3.self_attn.o_proj.weight", false), nullptr);
  EXPECT_EQ(quantization->packed_format("model.layers.0.mlp.down_proj.weight", false), nullptr);
  EXPECT_FALSE(unquantized_config(kimi)["text_config"].contains("quantization_config"));
}

}  // namespace
}  // namespace hone
