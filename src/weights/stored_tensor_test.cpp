// Quantised checkpoints: what is loaded against the formats' formulas in float64, from files that
// tools/make_quantized_fixtures.py wrote.
#include "weights/stored_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "core/cpu/isa_testing.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "params/frozen_weights.h"
#include "params/payload.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/quantized";

// The formats, number by number. OCP OFP8: sign, 4 bits of exponent (bias 7), 3 of mantissa; s.1111.111 is NaN.
double e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}
// OCP MX: sign, 2 bits of exponent (bias 1), 1 of mantissa.
double e2m1(int code) {
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double magnitude = exponent == 0 ? mantissa / 2.0 : std::ldexp(1 + mantissa / 2.0, exponent - 1);
  return code & 8 ? -magnitude : magnitude;
}
double e8m0(uint8_t code) { return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127); }

std::vector<uint8_t> bytes_of(const Checkpoint& checkpoint, const std::string& name) {
  const Checkpoint::Tensor& tensor = *checkpoint.find(name);
  std::vector<uint8_t> bytes(tensor.entry->bytes);
  tensor.file->read(*tensor.entry, 0, bytes.data(), bytes.size());
  return bytes;
}

/// Every number of NAME and NAME_scale_inv, in the file's order.
std::vector<double> block_fp8_values(const Checkpoint& checkpoint, const std::string& name) {
  const std::vector<int64_t> shape = checkpoint.find(name)->entry->shape;
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const int64_t row_blocks = (rows + 15) / 16, column_blocks = (columns + 31) / 32;
  const std::vector<uint8_t> codes = bytes_of(checkpoint, name);
  const Checkpoint::Tensor& scale_tensor = *checkpoint.find(name + "_scale_inv");
  const std::vector<float> scales = scale_tensor.file->read_floats(name + "_scale_inv");
  std::vector<double> values;
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t matrix = at / (rows * columns), row = at / columns % rows, column = at % columns;
    const int64_t scale = (matrix * row_blocks + row / 16) * column_blocks + column / 32;
    values.push_back(e4m3(codes[i]) * static_cast<double>(scales[static_cast<size_t>(scale)]));
  }
  return values;
}

/// Every number of NAME_blocks and NAME_scales, [E, out, in] with the file's order of outputs.
std::vector<double> mxfp4_values(const Checkpoint& checkpoint, const std::string& name) {
  const std::vector<uint8_t> codes = bytes_of(checkpoint, name + "_blocks");
  const std::vector<uint8_t> scales = bytes_of(checkpoint, name + "_scales");
  std::vector<double> values;
  for (size_t i = 0; i < 2 * codes.size(); ++i) {
    values.push_back(e2m1(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4) * e8m0(scales[i / 32]));
  }
  return values;
}

/// The parameter's element is the number rounded once to float32, and for bfloat16 from there.
void expect_element(const Parameter& parameter, int64_t i, double expected) {
  const auto exact = static_cast<float>(expected);
  const bool nan = std::isnan(expected);
  if (parameter.value().dtype() == DType::kF32 || parameter.state().has_master()) {
    const float value = stepped_value(parameter).as<float>()[i];
    ASSERT_TRUE(nan ? std::isnan(value) : value == exact)
        << parameter.name() << " " << i << ": " << value << " " << exact;
  }
  if (parameter.value().dtype() == DType::kF32) return;
  const BFloat16 value = parameter.value().whole().as<BFloat16>()[i];
  ASSERT_TRUE(nan ? std::isnan(static_cast<float>(value)) : value.bits == BFloat16(exact).bits)
      << parameter.name() << " " << i << ": " << static_cast<float>(value) << " " << exact;
}

void add_fp8_model(ParameterStore& store, DType dtype) {
  const std::string layer = "model.layers.0.self_attn.";
  const auto kind = ParameterKind::kAttention;
  store.add({layer + "q_proj.weight", {50, 70}, kind, 0, {}}, dtype);
  store.add({layer + "k_proj.weight", {32, 64}, kind, 0, {}}, dtype);
  store.add({layer + "v_proj.weight", {1, 3}, kind, 0, {}}, dtype);
  store.add({layer + "o_proj.weight", {17, 33}, kind, 0, {}}, dtype);
  store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, dtype);
  testing::add_experts(store, {.experts = 3, .hidden = 40, .intermediate = 20, .dtype = dtype}, 0);
  store.add({"model.layers.1.mlp.experts.down_proj", {3, 40, 20}, ParameterKind::kExpertsDown, 1, {}}, dtype);
}

void add_mxfp4_model(ParameterStore& store, DType dtype) {
  const std::string experts = "model.layers.0.mlp.experts.";
  store.add(
      {experts + "gate_up_proj", {3, 34, 96}, ParameterKind::kExpertsGateUp, 0, {}, FileOrder::kTransposedInterleaved},
      dtype);
  store.add({experts + "down_proj", {3, 96, 32}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed}, dtype);
  store.add({experts + "gate_up_proj_bias", {3, 34}, ParameterKind::kBias, 0, {}, FileOrder::kInterleaved}, dtype);
}

void expect_fp8_model(const Checkpoint& checkpoint, const CheckpointMap& map, const ParameterStore& store) {
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kNorm) continue;
    for (const FileTensor& tensor : map.layouts.at(&parameter)) {
      const std::vector<double> expected = block_fp8_values(checkpoint, tensor.name);
      for (size_t i = 0; i < expected.size(); ++i) {
        expect_element(parameter, tensor.offset + static_cast<int64_t>(i), expected[i]);
      }
    }
  }
}

/// Row `file_row` of the file's outputs: gate 0, up 0, gate 1, …
int64_t memory_row(int64_t file_row, int64_t rows) { return file_row % 2 * (rows / 2) + file_row / 2; }

void expect_mxfp4_model(const Checkpoint& checkpoint, const ParameterStore& store) {
  for (const Parameter& parameter : store.all()) {
    const bool interleaved = parameter.spec().kind != ParameterKind::kExpertsDown;
    const bool bias = parameter.spec().kind == ParameterKind::kBias;
    std::vector<double> expected;
    for (int i = 0; i < 102 && bias; ++i) expected.push_back(i);
    if (!bias) expected = mxfp4_values(checkpoint, parameter.name());
    const int64_t rows = parameter.shape()[1], columns = bias ? 1 : parameter.shape()[2];
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t matrix = at / (rows * columns), row = at / columns % rows;
      const int64_t place = interleaved ? memory_row(row, rows) : row;
      expect_element(parameter, (matrix * rows + place) * columns + at % columns, expected[i]);
    }
  }
}

class QuantizedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hone_quantized_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  /// Loads into float32, frozen bfloat16, and bfloat16 with float32 masters.
  template <class Add, class Expect>
  void expect_loads(const fs::path& directory, const Add& add, const Expect& expect) {
    const Checkpoint checkpoint = Checkpoint::open(directory);
    for (const auto& [dtype, inference] :
         {std::pair(DType::kF32, false), {DType::kBF16, true}, {DType::kBF16, false}}) {
      ParameterStore store;
      add(store, dtype);
      store.allocate(Device{}, inference);
      const CheckpointMap map = map_checkpoint(checkpoint, store, {{"mtp."}});
      int64_t bytes = 0;
      load_parameters(checkpoint, map, store, pool_, [&](int64_t done) { bytes = done; });
      EXPECT_GT(bytes, 0);
      expect(checkpoint, map, store);
    }
  }

  /// A checkpoint of these tensors, all bytes zero.
  std::string error_of(const std::vector<SafetensorsWriter::Announced>& tensors, const std::string& quantization,
                       void (*add)(ParameterStore&)) {
    std::ofstream(root_ / "config.json") << "{" << quantization << "}";
    SafetensorsWriter writer(root_ / "model.safetensors", tensors);
    for (const auto& tensor : tensors) {
      size_t bytes = size_of(tensor.dtype);
      for (int64_t dim : tensor.shape) bytes *= static_cast<size_t>(dim);
      writer.write(std::vector<std::byte>(bytes).data(), bytes);
    }
    writer.finish();
    ParameterStore store;
    add(store);
    return testing::user_error([&] { map_checkpoint(Checkpoint::open(root_), store); });
  }

  fs::path root_;
  ThreadPool pool_{2};
};

TEST_F(QuantizedCheckpoint, BlockFp8IsTheCodeTimesTheScaleOfItsBlock) {
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(name_of(isa));
    const ForcedIsa forced(isa);
    expect_loads(kFixtures / "fp8", add_fp8_model, expect_fp8_model);
  }
}

TEST_F(QuantizedCheckpoint, Mxfp4IsTheCodeTimesThePowerOfTwoOfItsBlock) {
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(name_of(isa));
    const ForcedIsa forced(isa);
    expect_loads(kFixtures / "mxfp4", add_mxfp4_model,
                 [](const Checkpoint& c, const CheckpointMap&, const ParameterStore& s) { expect_mxfp4_model(c, s); });
  }
}

// bitsandbytes: tools/make_bitsandbytes_fixture.py.

void add_bitsandbytes_model(ParameterStore& store, DType dtype) {
  const std::string layer = "model.layers.0.";
  const auto attention = ParameterKind::kAttention;
  store.add({layer + "self_attn.q_proj.weight", {48, 128}, attention, 0, {}}, dtype);
  store.add({layer + "self_attn.k_proj.weight", {32, 64}, attention, 0, {}}, dtype);
  store.add({layer + "self_attn.v_proj.weight", {7, 37}, attention, 0, {}}, dtype);
  store.add({layer + "self_attn.o_proj.weight", {17, 33}, attention, 0, {}}, dtype);
  store.add({layer + "mlp.up_proj.weight", {64, 520}, ParameterKind::kMlp, 0, {}}, dtype);
  store.add({layer + "mlp.gate_proj.weight", {64, 520}, ParameterKind::kMlp, 0, {}}, dtype);
  store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, dtype);
}

/// The last place of 8 bits may differ: bitsandbytes multiplies by SCB and 1 / 127 one after the other.
void expect_bitsandbytes_model(const ParameterStore& store) {
  const SafetensorsFile expected(kFixtures / "bitsandbytes/expected.safetensors");
  for (const Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kNorm) continue;
    const std::vector<float> numbers = expected.read_floats(parameter.name());
    ASSERT_EQ(static_cast<int64_t>(numbers.size()), parameter.shape().numel());
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!parameter.name().ends_with("o_proj.weight")) {
        expect_element(parameter, static_cast<int64_t>(i), numbers[i]);
      } else if (parameter.value().dtype() == DType::kF32) {
        ASSERT_NEAR(parameter.value().whole().as<float>()[i], numbers[i], 2e-7 * std::fabs(numbers[i])) << i;
      }
    }
  }
}

TEST_F(QuantizedCheckpoint, ALabelOfBitsandbytesThatContradictsItsTableIsRefused) {
  const SafetensorsFile source(kFixtures / "bitsandbytes/model.safetensors");
  const auto error = [&](const std::string& name, const std::string& from, const std::string& to) {
    std::vector<SafetensorsWriter::Announced> tensors;
    for (const SafetensorsEntry& entry : source.entries()) {
      std::string renamed = entry.name;
      const std::string ending = ".quant_state.bitsandbytes__" + from;
      if (renamed == name + ending) renamed = name + ".quant_state.bitsandbytes__" + to;
      tensors.push_back({renamed, entry.dtype, entry.shape});
    }
    fs::copy_file(kFixtures / "bitsandbytes/config.json", root_ / "config.json", fs::copy_options::overwrite_existing);
    SafetensorsWriter writer(root_ / "model.safetensors", tensors);
    for (const SafetensorsEntry& entry : source.entries()) {
      std::vector<std::byte> bytes(entry.bytes);
      source.read(entry, 0, bytes.data(), bytes.size());
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
    ParameterStore store;
    add_bitsandbytes_model(store, DType::kF32);
    return testing::user_error([&] { map_checkpoint(Checkpoint::open(root_), store, {{"mtp."}}); });
  };
  const std::string attention = "model.layers.0.self_attn.";
  EXPECT_THAT(error(attention + "q_proj.weight", "nf4", "fp4"), HasSubstr("fp4"));
  EXPECT_THAT(error(attention + "v_proj.weight", "fp4", "nf4"), HasSubstr("nf4"));
}

TEST_F(QuantizedCheckpoint, BitsandbytesMatricesAreWhatItDequantises) {
  expect_loads(kFixtures / "bitsandbytes", add_bitsandbytes_model,
               [](const Checkpoint&, const CheckpointMap&, const ParameterStore& s) { expect_bitsandbytes_model(s); });
}

/// Packed formats of these weights; the codes of a file where they are the same.
TEST_F(QuantizedCheckpoint, BitsandbytesCodesStayAsTheyAre) {
  const Checkpoint checkpoint = Checkpoint::open(kFixtures / "bitsandbytes");
  ParameterStore store;
  add_bitsandbytes_model(store, DType::kBF16);
  std::map<std::string, const PackedFormat*> formats;
  for (Parameter& parameter : store.all()) {
    if (parameter.spec().kind == ParameterKind::kNorm) continue;
    std::vector<std::string> missing;
    const auto stored = StoredTensor::find(checkpoint, parameter.spec().all_layouts().front().front(), missing);
    formats[parameter.name()] = stored->packed_format();
    if (stored->packed_format() == nullptr) continue;
    parameter.set_trainable(false);
    hold_frozen_in(parameter, *stored->packed_format());
    EXPECT_TRUE(stored->has_chunks(packed_layout(parameter))) << parameter.name();
  }
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(formats[layer + "self_attn.q_proj.weight"], &nf4_format());
  EXPECT_EQ(formats[layer + "self_attn.k_proj.weight"], &nf4_float_scales_format());
  EXPECT_EQ(formats[layer + "self_attn.v_proj.weight"], nullptr) << "fp4";
  EXPECT_EQ(formats[layer + "self_attn.o_proj.weight"], &packed_int8_format());
  EXPECT_EQ(formats[layer + "mlp.gate_proj.weight"], nullptr) << "blocks of 128";
  store.allocate(Device{}, true);
  load_parameters(checkpoint, map_checkpoint(checkpoint, store, {{"mtp."}}), store, pool_);
  const SafetensorsFile expected(kFixtures / "bitsandbytes/expected.safetensors");
  for (const Parameter& parameter : store.all()) {
    if (!parameter.value().packed()) continue;
    const std::vector<float> numbers = expected.read_floats(parameter.name());
    std::vector<float> values(numbers.size());
    unpack(packed_layout(parameter), parameter.value().stored().payload.data, 0, parameter.shape().numel(),
           values.data());
    const float tolerance = parameter.name().ends_with("o_proj.weight") ? 2e-7f : 0.0f;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], numbers[i], tolerance * std::fabs(numbers[i])) << parameter.name() << " " << i;
    }
  }
}

TEST_F(QuantizedCheckpoint, LoadsTheSameBytesOnAGpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const std::string name : {"fp8", "mxfp4"}) {
    for (const bool inference : {true, false}) {
      const Checkpoint checkpoint = Checkpoint::open(kFixtures / name);
      ParameterStore on_cpu, on_gpu;
      for (const auto& [store, device] : {std::pair(&on_cpu, Device{}), {&on_gpu, Device{DeviceKind::kCuda, 0}}}) {
        name == "fp8" ? add_fp8_model(*store, DType::kBF16) : add_mxfp4_model(*store, DType::kBF16);
        store->allocate(device, inference);
        load_parameters(checkpoint, map_checkpoint(checkpoint, *store, {{"mtp."}}), *store, pool_);
      }
      for (size_t i = 0; i < on_cpu.all().size(); ++i) {
        const Parameter &ours = on_gpu.all()[i], &theirs = on_cpu.all()[i];
        std::vector<std::byte> value(ours.value().whole().bytes()), master(stepped_value(ours).bytes());
        copy_to_host(value.data(), ours.value().whole());
        copy_to_host(master.data(), stepped_value(ours));
        EXPECT_EQ(value, testing::bytes_of(theirs.value().whole())) << ours.name();
        EXPECT_EQ(master, testing::bytes_of(stepped_value(theirs))) << ours.name();
      }
    }
  }
}

TEST_F(QuantizedCheckpoint, IsSavedInBFloat16UnderThePlainNamesAndOrders) {
  const Checkpoint source = Checkpoint::open(kFixtures / "mxfp4");
  ParameterStore store, again;
  add_mxfp4_model(store, DType::kBF16);
  add_mxfp4_model(again, DType::kBF16);
  for (ParameterStore* each : {&store, &again}) each->allocate(Device{}, true);
  const CheckpointMap map = map_checkpoint(source, store);
  load_parameters(source, map, store, pool_);
  save_parameters(root_, store, &source, &map, {});
  copy_model_files(kFixtures / "mxfp4", root_);
  const Checkpoint saved = Checkpoint::open(root_);
  EXPECT_FALSE(saved.quantization());
  const std::string experts = "model.layers.0.mlp.experts.";
  EXPECT_EQ(saved.tensors().size(), 3u);
  EXPECT_EQ(saved.find(experts + "gate_up_proj")->entry->shape, (std::vector<int64_t>{3, 96, 34}));
  EXPECT_EQ(saved.find(experts + "gate_up_proj")->entry->dtype, DType::kBF16);
  EXPECT_EQ(saved.find(experts + "gate_up_proj_bias")->entry->dtype, DType::kF32);
  // Number by number: element [e, column, row] of the file is the code [e, row, column].
  const std::vector<double> codes = mxfp4_values(source, experts + "gate_up_proj");
  const std::vector<float> numbers = saved.find(experts + "gate_up_proj")->file->read_floats(experts + "gate_up_proj");
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t matrix = i / (96 * 34), column = i / 34 % 96, row = i % 34;
    const auto expected = static_cast<float>(BFloat16(static_cast<float>(codes[(matrix * 34 + row) * 96 + column])));
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(numbers[i]) : numbers[i] == expected) << i;
  }
  load_parameters(saved, map_checkpoint(saved, again), again, pool_);
  for (size_t i = 0; i < store.all().size(); ++i) {
    EXPECT_EQ(testing::bytes_of(store.all()[i].value().whole()), testing::bytes_of(again.all()[i].value().whole()));
  }
}

TEST_F(QuantizedCheckpoint, CarriedTensorsAreSavedDequantised) {
  const Checkpoint source = Checkpoint::open(kFixtures / "fp8");
  ParameterStore store;
  add_fp8_model(store, DType::kF32);
  store.allocate(Device{}, true);
  const CheckpointMap map = map_checkpoint(source, store, {{"mtp."}});
  load_parameters(source, map, store, pool_);
  save_parameters(root_, store, &source, &map, {});
  const Checkpoint saved = Checkpoint::open(root_);
  EXPECT_EQ(saved.find("mtp.proj.weight_scale_inv"), nullptr);
  const std::vector<double> expected = block_fp8_values(source, "mtp.proj.weight");
  const std::vector<float> numbers = saved.find("mtp.proj.weight")->file->read_floats("mtp.proj.weight");
  EXPECT_EQ(saved.find("mtp.proj.weight")->entry->dtype, DType::kBF16);
  ASSERT_EQ(numbers.size(), expected.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto rounded = static_cast<float>(BFloat16(static_cast<float>(expected[i])));
    ASSERT_TRUE(std::isnan(rounded) ? std::isnan(numbers[i]) : numbers[i] == rounded) << i;
  }
}

TEST_F(QuantizedCheckpoint, MissingAndMisshapenScalesAreNamed) {
  const std::string fp8 = R"("quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";
  const auto linear = [](ParameterStore& store) {
    store.add({"q.weight", {130, 256}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  };
  const SafetensorsWriter::Announced codes{"q.weight", DType::kU8, {130, 256}, true};
  EXPECT_THAT(error_of({codes}, fp8, linear), HasSubstr("lacks 1 of the model's tensors: q.weight_scale_inv"));
  EXPECT_THAT(error_of({codes, {"q.weight_scale_inv", DType::kF32, {1, 2}}}, fp8, linear),
              HasSubstr("'q.weight_scale_inv' has the shape [1, 2], weight_block_size [128, 128] asks for [2, 2]"));
  EXPECT_THAT(error_of({codes, {"q.weight_scale_inv", DType::kU8, {2, 2}}}, fp8, linear), HasSubstr("uint8"));
  EXPECT_THAT(error_of({codes, {"q.weight_scale_inv", DType::kF32, {2, 2}}}, "", linear),
              HasSubstr("no quantization_config"));
  EXPECT_EQ(error_of({codes, {"q.weight_scale_inv", DType::kF32, {2, 2}}}, fp8, linear), "");
  // Blocks are 128 x 128 where config.json does not say.
  const std::string unstated = R"("quantization_config": {"quant_method": "fp8"})";
  EXPECT_EQ(error_of({codes, {"q.weight_scale_inv", DType::kF32, {2, 2}}}, unstated, linear), "");
  EXPECT_THAT(error_of({codes, {"q.weight_scale_inv", DType::kF32, {1, 1}}}, unstated, linear),
              HasSubstr("weight_block_size [128, 128] asks for [2, 2]"));
  EXPECT_THAT(
      error_of({{"q.weight", DType::kF32, {130, 256}}, {"q.weight_scale_inv", DType::kF32, {2, 2}}}, fp8, linear),
      HasSubstr("does not know: q.weight_scale_inv"));

  const std::string mxfp4 = R"("quantization_config": {"quant_method": "mxfp4"})";
  const auto experts = [](ParameterStore& store) {
    store.add({"experts.down_proj", {2, 3, 64}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed},
              DType::kF32);
  };
  const SafetensorsWriter::Announced blocks{"experts.down_proj_blocks", DType::kU8, {2, 3, 2, 16}};
  const SafetensorsWriter::Announced scales{"experts.down_proj_scales", DType::kU8, {2, 3, 2}};
  EXPECT_EQ(error_of({blocks, scales}, mxfp4, experts), "");
  EXPECT_THAT(error_of({blocks}, mxfp4, experts), HasSubstr("experts.down_proj_scales"));
  EXPECT_THAT(error_of({scales}, mxfp4, experts), HasSubstr("experts.down_proj_blocks"));
  EXPECT_THAT(error_of({blocks, {"experts.down_proj_scales", DType::kU8, {2, 3, 3}}}, mxfp4, experts),
              HasSubstr("'experts.down_proj_scales' has the shape [2, 3, 3]"));
  EXPECT_THAT(error_of({blocks, {"experts.down_proj_scales", DType::kF32, {2, 3, 2}}}, mxfp4, experts),
              HasSubstr("float32, not uint8"));
  EXPECT_THAT(error_of({blocks, scales}, fp8, experts), HasSubstr("no quantization_config"));
  EXPECT_THAT(error_of({{"experts.down_proj", DType::kF32, {2, 3, 64}}}, mxfp4, experts),
              HasSubstr("config.json asks for [2, 64, 3]"));
}

/// As Mistral-Small-4 is published: a scalar for a matrix, a number for each expert, and scales of activations.
TEST_F(QuantizedCheckpoint, AWholeMatrixMayHaveOneScale) {
  std::ofstream(root_ / "config.json")
      << R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": null}})";
  SafetensorsWriter writer(root_ / "model.safetensors", {{"q.weight", DType::kU8, {2, 3}, true},
                                                         {"q.weight_scale_inv", DType::kF32, {}},
                                                         {"q.activation_scale", DType::kF32, {}},
                                                         {"down_proj", DType::kU8, {2, 2, 2}, true},
                                                         {"down_proj_scale_inv", DType::kF32, {2, 1, 1}},
                                                         {"down_proj_activation_scale", DType::kF32, {2}}});
  const uint8_t codes[] = {0x38, 0x40, 0xb8, 0x30, 0x00, 0x7e};  // 1, 2, -1, 0.5, 0, 448
  const float scale = 0.25f, rounded = 3.0f, scales[] = {0.5f, 2.0f}, both[] = {3.0f, 3.0f};
  const uint8_t stack[] = {0x38, 0x40, 0xb8, 0x30, 0x38, 0x40, 0xb8, 0x30};
  writer.write(codes, sizeof(codes));
  writer.write(&scale, sizeof(scale));
  writer.write(&rounded, sizeof(rounded));
  writer.write(stack, sizeof(stack));
  writer.write(scales, sizeof(scales));
  writer.write(both, sizeof(both));
  writer.finish();
  const Checkpoint checkpoint = Checkpoint::open(root_);
  ParameterStore store;
  Parameter& q = store.add({"q.weight", {2, 3}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  Parameter& down = store.add({"down_proj", {2, 2, 2}, ParameterKind::kExpertsDown, 0, {}}, DType::kF32);
  store.allocate(Device{}, true);
  const CheckpointMap map = map_checkpoint(checkpoint, store);
  EXPECT_THAT(map.carried, ::testing::IsEmpty());
  load_parameters(checkpoint, map, store, pool_);
  EXPECT_THAT(std::vector<float>(q.value().whole().as<float>(), q.value().whole().as<float>() + 6),
              ::testing::ElementsAre(0.25f, 0.5f, -0.25f, 0.125f, 0.0f, 112.0f));
  EXPECT_THAT(std::vector<float>(down.value().whole().as<float>(), down.value().whole().as<float>() + 8),
              ::testing::ElementsAre(0.5f, 1.0f, -0.5f, 0.25f, 2.0f, 4.0f, -2.0f, 1.0f));
  const auto linear = [](ParameterStore& other) {
    other.add({"q.weight", {130, 256}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  };
  EXPECT_THAT(error_of({{"q.weight", DType::kU8, {130, 256}, true}, {"q.weight_scale_inv", DType::kF32, {2}}},
                       R"("quantization_config": {"quant_method": "fp8", "weight_block_size": null})", linear),
              HasSubstr("weight_block_size null asks for [1, 1]"));
}

TEST_F(QuantizedCheckpoint, ATruncatedFileIsRefused) {
  std::stringstream contents;
  contents << std::ifstream(kFixtures / "mxfp4/model.safetensors", std::ios::binary).rdbuf();
  const std::string text = contents.str();
  std::ofstream(root_ / "model.safetensors", std::ios::binary) << text.substr(0, text.size() - 100);
  EXPECT_THAT(testing::user_error([&] { Checkpoint::open(root_); }), HasSubstr("truncated"));
}

TEST_F(QuantizedCheckpoint, OtherMethodsAreRefusedByName) {
  const auto error = [&](const char* quantization) {
    std::ofstream(root_ / "config.json") << R"({"quantization_config": )" << quantization << "}";
    return testing::user_error([&] { read_quantization(root_); });
  };
  EXPECT_THAT(error(R"({"quant_method": "gptq", "bits": 4})"), HasSubstr("GPTQ checkpoints are not read"));
  EXPECT_EQ(error(R"({"quant_method": "fp8", "weight_block_size": null})"), "");
  EXPECT_THAT(error(R"({"quant_method": "fp8", "weight_block_size": [128, 0]})"), HasSubstr("weight_block_size"));
  EXPECT_THAT(error(R"({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [1, 1]})"), HasSubstr("fmt"));
  EXPECT_THAT(error(R"(7)"), HasSubstr("not an object"));
  EXPECT_EQ(error(R"({"quant_method": "fp8", "weight_block_size": [1, 128]})"), "");
}

}  // namespace
}  // namespace hone
