// Compares models that are merged piece by piece with merging in memory, and tests the checks.
#include "weights/merged_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "params/adapter.h"
#include "params/frozen_weights.h"
#include "params/store_testing.h"
#include "weights/adapter.h"
#include "weights/merged_tensor.h"
#include "weights/shard_writer.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path kQuantizedFixtures = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/quantized";

std::string contents(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

LoraOptions merged_lora(ExpertLora experts) {
  return {.r = 6,
          .alpha = 9,
          .expert_lora = experts,
          .target_modules = {"attention", "all-experts"},
          .target_parameters = {}};
}

using AddModel = std::function<void(ParameterStore& store)>;

void add_small_model(ParameterStore& store) {
  testing::add_model(store, {.experts = 3, .hidden = 24, .intermediate = 30, .vocab = 50});
}

/// Adds experts whose files store all experts of a layer in one tensor.
void add_fused_experts(ParameterStore& store) {
  testing::add_model(store, {.experts = 3, .hidden = 24, .intermediate = 30, .vocab = 50, .separate_files = false});
}

/// Adds experts as in gpt-oss: [E, in, out], rows of gate and up alternately.
void add_turned_experts(ParameterStore& store) {
  const std::string experts = "model.layers.0.mlp.experts.";
  store.add(
      {experts + "gate_up_proj", {3, 34, 96}, ParameterKind::kExpertsGateUp, 0, {}, FileOrder::kTransposedInterleaved},
      DType::kF32);
  store.add({experts + "down_proj", {3, 96, 32}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed},
            DType::kF32);
  store.add({experts + "gate_up_proj_bias", {3, 34}, ParameterKind::kBias, 0, {}, FileOrder::kInterleaved},
            DType::kF32);
}

/// Adds the model of the fixture fp8.
void add_blocks_of_fp8(ParameterStore& store) {
  const std::string layer = "model.layers.0.self_attn.";
  const auto kind = ParameterKind::kAttention;
  store.add({layer + "q_proj.weight", {50, 70}, kind, 0, {}}, DType::kF32);
  store.add({layer + "k_proj.weight", {32, 64}, kind, 0, {}}, DType::kF32);
  store.add({layer + "v_proj.weight", {1, 3}, kind, 0, {}}, DType::kF32);
  store.add({layer + "o_proj.weight", {17, 33}, kind, 0, {}}, DType::kF32);
  store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  testing::add_experts(store, {.experts = 3, .hidden = 40, .intermediate = 20}, 0);
  store.add({"model.layers.1.mlp.experts.down_proj", {3, 40, 20}, ParameterKind::kExpertsDown, 1, {}}, DType::kF32);
}

/// A base and an adapter with values, merged in files and in memory.
class MergedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hone_merged_" + std::to_string(getpid()));
    fs::remove_all(root_);
    for (const char* name : {"base", "adapter", "merged", "expected"}) fs::create_directories(root_ / name);
  }
  void TearDown() override { fs::remove_all(root_); }

  void make_base(const AddModel& add, DType dtype) {
    ParameterStore store;
    add(store);
    store.allocate(Device{});
    testing::fill(store, 5);
    save_parameters(root_ / "base", store, nullptr, nullptr, {.dtype = dtype});
  }

  /// Copies a quantised fixture as the base, and replaces codes and scales that are NaN or extreme.
  void copy_without_nan(const fs::path& fixture) {
    fs::copy(fixture / "config.json", root_ / "base");
    const Checkpoint source = Checkpoint::open(fixture);
    std::vector<SafetensorsWriter::Announced> announced;
    for (const auto& [name, tensor] : source.tensors()) {
      announced.push_back({name, tensor.entry->dtype, tensor.entry->shape, tensor.entry->float8_e4m3});
    }
    SafetensorsWriter writer(root_ / "base/model.safetensors", announced);
    for (const auto& [name, tensor] : source.tensors()) {
      std::vector<uint8_t> bytes(tensor.entry->bytes);
      tensor.file->read(*tensor.entry, 0, bytes.data(), bytes.size());
      for (uint8_t& byte : bytes) {
        if (tensor.entry->float8_e4m3 && (byte & 0x7F) == 0x7F) byte = 0x31;
        if (name.ends_with("_scales")) byte = static_cast<uint8_t>(120 + byte % 10);
      }
      if (name.ends_with("_scale_inv")) {
        dispatch_float(tensor.entry->dtype, [&](auto element) {
          using T = decltype(element);
          for (T& scale : std::span(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T))) {
            const auto magnitude = std::abs(static_cast<float>(scale));
            if (!(magnitude < 1 && magnitude > 1e-3f)) scale = T(0.25f);
          }
        });
      }
      writer.write(bytes.data(), bytes.size());
    }
    writer.finish();
  }

  void make_adapter(const AddModel& add, const LoraOptions& lora, const std::set<ParameterKind>& whole = {}) {
    ParameterStore store;
    add(store);
    attach_lora(store, lora);
    for (Parameter& p : store.all()) {
      if (whole.contains(p.spec().kind)) p.set_trainable(true);
    }
    store.allocate(Device{});
    testing::fill(store, 7);
    save_adapter(root_ / "adapter", store, {.lora = lora, .layout = AdapterLayout::kAsTrained, .base_model = "base"});
  }

  /// Describes the base with the adapter attached, without memory.
  void describe(ParameterStore& store, const AddModel& add) const {
    add(store);
    const AdapterDescription description = describe_adapter(root_ / "adapter", store);
    attach_lora(store, description.lora);
    for (Parameter& p : store.all()) {
      if (description.whole.contains(p.spec().kind)) p.set_trainable(true);
    }
  }

  MergeReport merge(const AddModel& add, MergeSaveOptions options = {}, int threads = 3) {
    ThreadPool pool(threads);
    ParameterStore store;
    describe(store, add);
    const Checkpoint base = Checkpoint::open(root_ / "base");
    const CheckpointMap map = map_checkpoint(base, store, {{"mtp."}});
    load_adapter_values(root_ / "adapter", store, base, map, pool);
    return save_merged(root_ / "merged", store, base, map, pool, options);
  }

  /// Compares with merging the full model in memory.
  void expect_from_memory(const AddModel& add, std::optional<DType> dtype = {},
                          const PackedFormat* rounding = nullptr) {
    ThreadPool pool(1);
    ParameterStore store;
    describe(store, add);
    store.allocate(Device{}, true);
    const Checkpoint base = Checkpoint::open(root_ / "base");
    const CheckpointMap map = map_checkpoint(base, store, {{"mtp."}});
    load_parameters(base, map, store, pool);
    for (const Parameter& p : store.all()) {
      if (rounding != nullptr && is_base_weight(p)) round_matrices(*rounding, p);
    }
    load_adapter(root_ / "adapter", store);
    merge_adapters(store);
    save_parameters(root_ / "expected", store, &base, &map, {.dtype = dtype});
  }

  /// Rounds each matrix of a dense value.
  static void round_matrices(const PackedFormat& format, const Parameter& p) {
    const PackedLayout layout = format.layout(p.spec().stack()[-2], p.spec().stack()[-1]);
    std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
    for (int64_t at = 0; at < p.shape().numel(); at += layout.elements()) {
      float* values = p.value().whole().as<float>() + at;
      format.pack(layout, values, chunk.data());
      unpack(layout, chunk.data(), 0, layout.elements(), values);
    }
  }

  /// Compares both models: same tensors, whose numbers differ by at most two roundings.
  void compare(double unit) const {
    const Checkpoint merged = Checkpoint::open(root_ / "merged"), expected = Checkpoint::open(root_ / "expected");
    ASSERT_EQ(merged.tensors().size(), expected.tensors().size());
    for (const auto& [name, tensor] : expected.tensors()) {
      const Checkpoint::Tensor* own = merged.find(name);
      ASSERT_TRUE(own != nullptr) << name;
      ASSERT_EQ(own->entry->shape, tensor.entry->shape) << name;
      ASSERT_EQ(own->entry->dtype, tensor.entry->dtype) << name;
      const std::vector<float> a = own->file->read_floats(name), b = tensor.file->read_floats(name);
      for (size_t i = 0; i < b.size(); ++i) {
        ASSERT_LE(std::abs(a[i] - b[i]), 2 * unit * std::abs(b[i]) + 4e-6) << name << " " << i;
      }
    }
  }

  std::vector<std::string> names_in_merged() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_ / "merged")) names.push_back(entry.path().filename());
    return names;
  }

  fs::path root_;
};

double unit_of(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-23; }

TEST_F(MergedModel, IsWhatMergingInMemoryGives) {
  for (const AddModel& add : {AddModel(add_small_model), AddModel(add_fused_experts)}) {
    for (const ExpertLora experts : {ExpertLora::kSplit, ExpertLora::kShared}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        SCOPED_TRACE(std::string(name_of(dtype)));
        SetUp();
        make_base(add, dtype);
        make_adapter(add, merged_lora(experts));
        expect_from_memory(add);
        const MergeReport report = merge(add);
        compare(unit_of(dtype));
        EXPECT_GT(report.merged, 3);
        EXPECT_LT(report.merged, report.tensors);
        EXPECT_EQ(report.replaced, 0);
        EXPECT_LT(report.lost, 1.5 * unit_of(dtype));  // the adapter's change is as large as the weights
      }
    }
  }
}

TEST_F(MergedModel, WithDoraIsWhatMergingInMemoryGives) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SetUp();
    LoraOptions lora = merged_lora(ExpertLora::kSplit);
    lora.target_modules = {"attention"};
    lora.use_dora = true;
    make_base(add_small_model, dtype);
    make_adapter(add_small_model, lora);
    expect_from_memory(add_small_model);
    EXPECT_GE(merge(add_small_model).merged, 2);
    compare(unit_of(dtype));
  }
}

TEST_F(MergedModel, OfTransposedFilesIsWhatMergingInMemoryGives) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ExpertLora experts : {ExpertLora::kSplit, ExpertLora::kShared}) {
      SetUp();
      LoraOptions lora = merged_lora(experts);
      lora.target_modules = {"all-experts"};
      make_base(add_turned_experts, dtype);
      make_adapter(add_turned_experts, lora);
      expect_from_memory(add_turned_experts);
      EXPECT_EQ(merge(add_turned_experts).merged, 2);
      compare(unit_of(dtype));
    }
  }
}

TEST_F(MergedModel, OfQuantisedFilesIsWrittenInBFloat16) {
  for (const std::string name : {"fp8", "mxfp4"}) {
    for (const ExpertLora experts : {ExpertLora::kSplit, ExpertLora::kShared}) {
      SetUp();
      copy_without_nan(kQuantizedFixtures / name);
      const AddModel add = name == "fp8" ? AddModel(add_blocks_of_fp8) : AddModel(add_turned_experts);
      LoraOptions lora = merged_lora(experts);
      if (name == "mxfp4") lora.target_modules = {"all-experts"};
      make_adapter(add, lora);
      expect_from_memory(add);
      EXPECT_GE(merge(add).merged, 2);
      compare(unit_of(DType::kBF16));
      const Checkpoint merged = Checkpoint::open(root_ / "merged");
      for (const auto& [tensor, found] : merged.tensors()) {
        const bool dequantised = !tensor.ends_with("norm.weight") && !tensor.ends_with("_bias");
        EXPECT_TRUE(!dequantised || found.entry->dtype == DType::kBF16) << tensor;
      }
    }
  }
}

TEST_F(MergedModel, RoundsTheBaseFirstIfAsked) {
  for (const AddModel& add : {AddModel(add_small_model), AddModel(add_fused_experts), AddModel(add_turned_experts)}) {
    for (const PackedFormat* format : {&nf4_format(), &packed_int8_format(), &fp8_format()}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(std::string(format->name()) + " " + std::string(name_of(dtype)));
        SetUp();
        LoraOptions lora = merged_lora(ExpertLora::kSplit);
        lora.target_modules = {"all-experts"};
        make_base(add, dtype);
        make_adapter(add, lora);
        expect_from_memory(add, {}, format);
        const auto rounding = [&](const Parameter& p) { return is_base_weight(p) ? format : nullptr; };
        const MergeReport report = merge(add, {.rounding = rounding});
        compare(unit_of(dtype));
        EXPECT_GE(report.rounded, report.merged) << "also those without an adapter";
        EXPECT_GT(report.base_change, 0.001);
        EXPECT_LT(report.base_change, 0.15);
      }
    }
  }
}

TEST_F(MergedModel, TensorsWithoutAnAdapterKeepTheirBytes) {
  make_base(add_small_model, DType::kF16);
  LoraOptions lora = merged_lora(ExpertLora::kSplit);
  lora.target_modules = {"q_proj"};
  make_adapter(add_small_model, lora);
  const MergeReport report = merge(add_small_model);
  EXPECT_EQ(report.merged, 1);
  const SafetensorsFile before(root_ / "base/model.safetensors"), after(root_ / "merged/model.safetensors");
  ASSERT_EQ(before.entries().size(), after.entries().size());
  for (const SafetensorsEntry& entry : before.entries()) {
    std::string a(entry.bytes, '\0'), b(entry.bytes, '\0');
    before.read(entry, 0, a.data(), a.size());
    after.read(after.at(entry.name), 0, b.data(), b.size());
    EXPECT_EQ(a == b, entry.name.find("q_proj") == std::string::npos) << entry.name;
  }
}

TEST_F(MergedModel, HasTheAdaptersOwnValuesOfWhatItHoldsWhole) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit), {ParameterKind::kRouter, ParameterKind::kNorm});
  expect_from_memory(add_small_model);
  const MergeReport report = merge(add_small_model);
  compare(0);
  EXPECT_EQ(report.replaced, 2);
}

TEST_F(MergedModel, IsWrittenInAnotherDtype) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  expect_from_memory(add_small_model, DType::kF32);
  const MergeReport report = merge(add_small_model, {.dtype = DType::kF32});
  compare(unit_of(DType::kF32));
  EXPECT_LT(report.lost, 1e-5);
}

TEST_F(MergedModel, DoesNotDependOnThreadsNorOnShards) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  merge(add_small_model, {}, 1);
  const std::string one = contents(root_ / "merged/model.safetensors");
  merge(add_small_model, {}, 4);
  EXPECT_TRUE(contents(root_ / "merged/model.safetensors") == one);
  fs::remove_all(root_ / "expected");
  fs::rename(root_ / "merged", root_ / "expected");
  fs::create_directories(root_ / "merged");
  EXPECT_GT(merge(add_small_model, {.max_shard_size = 1000}, 4).files, 4);
  compare(0);
}

TEST_F(MergedModel, SumsUpWhatItWrites) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  FileChecksums checksums;
  merge(add_small_model, {.max_shard_size = 4000, .checksums = &checksums});
  FileChecksums read = Manifest::of(root_ / "merged", {}).files();
  read.erase("model.safetensors.index.json");
  EXPECT_EQ(checksums, read);
}

TEST_F(MergedModel, ChecksAtLeastATwentiethOfTheRowsOfEachTensorAndSaysSo) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  const MergeReport report = merge(add_small_model);
  // q 6 and o 24 rows, three experts with 30, 30 and 24.
  EXPECT_EQ(report.rows, 6 + 24 + 3 * (30 + 30 + 24));
  EXPECT_EQ(report.sampled_rows, 1 + 2 + 3 * (2 + 2 + 2));
  EXPECT_DOUBLE_EQ(report.least_share, 2.0 / 30);
  std::set<int64_t> places;
  for (const int64_t rows : {1, 19, 20, 21, 39, 40, 41, 4096, 5001}) {
    EXPECT_GE(20 * sampled_rows(rows), rows);
    for (int64_t group = 0; group < sampled_rows(rows); ++group) {
      const int64_t row = sampled_row("a.weight", group, rows);
      EXPECT_GE(row, 20 * group);
      EXPECT_LT(row, std::min(20 * (group + 1), rows));
      EXPECT_EQ(row, sampled_row("a.weight", group, rows));
      places.insert(row % 20);
    }
  }
  EXPECT_EQ(places.size(), 20u);  // any row may be drawn
  int equal = 0;
  for (int64_t group = 0; group < 100; ++group) {
    equal += sampled_row("a.weight", group, 2000) == sampled_row("b.weight", group, 2000);
  }
  EXPECT_LT(equal, 20);
}

/// A byte of any tensor, merged or not, that changes between writing and checking is detected, with the tensor's name.
TEST_F(MergedModel, AByteThatChangesAfterItWasWrittenIsFound) {
  make_base(add_small_model, DType::kBF16);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  const MergeReport report = merge(add_small_model);
  fs::rename(root_ / "merged/model.safetensors", root_ / "expected/model.safetensors");
  const SafetensorsFile whole(root_ / "expected/model.safetensors");
  for (const SafetensorsEntry& entry : whole.entries()) {
    for (const uint64_t at : {entry.begin, entry.begin + entry.bytes - 1}) {
      const auto damage = [&](int64_t bytes) {
        if (bytes < report.bytes) return;
        ASSERT_EQ(names_in_merged().size(), 1u);
        std::fstream file(root_ / "merged" / names_in_merged().front(),
                          std::ios::binary | std::ios::in | std::ios::out);
        file.seekg(static_cast<std::streamoff>(at));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(at));
        file.put(static_cast<char>(byte ^ 1));
      };
      try {
        merge(add_small_model, {.progress = damage});
        FAIL() << entry.name;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kCheckFailed);
        EXPECT_THAT(error.message(), HasSubstr("'" + entry.name + "' has other bytes than were written"));
      }
      EXPECT_TRUE(names_in_merged().empty());
    }
  }
}

/// Makes a product wrong before its checksum is computed, so that the checksum matches the file.
TEST_F(MergedModel, AWrongProductIsFound) {
  for (const AddModel& add : {AddModel(add_small_model), AddModel(add_turned_experts)}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SetUp();
      LoraOptions lora = merged_lora(ExpertLora::kSplit);
      lora.target_modules = {"all-experts"};
      make_base(add, dtype);
      make_adapter(add, lora);
      ThreadPool pool(1);
      ParameterStore store;
      describe(store, add);
      const Checkpoint base = Checkpoint::open(root_ / "base");
      const CheckpointMap map = map_checkpoint(base, store);
      load_adapter_values(root_ / "adapter", store, base, map, pool);
      int merged = 0;
      for (SavedSlice& slice : saved_slices(store, &base, &map, {})) {
        const MergedTensor tensor(std::move(slice), base);
        if (tensor.source() != MergedTensor::Source::kMerged) continue;
        ++merged;
        RowScratch scratch;
        const int64_t rows = tensor.rows(), row_bytes = tensor.row_bytes();
        std::vector<std::byte> bytes(static_cast<size_t>(rows * row_bytes));
        tensor.make(scratch, 0, rows, bytes.data());
        EXPECT_EQ(tensor.check(scratch, 0, rows, bytes.data()).rows, sampled_rows(rows));
        // Changes the largest number of a sampled row by two units of a 16-bit dtype, or 2^-14 in float32.
        const auto element = size_of(dtype);
        const auto row = static_cast<size_t>(sampled_row(tensor.name(), 0, rows) * row_bytes);
        size_t largest = row;
        const auto magnitude = [&](size_t at) {  // integer in the order of the numbers
          uint32_t bits = 0;
          std::memcpy(&bits, bytes.data() + at, element);
          return bits & (element == 4 ? 0x7FFFFFFFu : 0x7FFFu);
        };
        for (size_t at = row; at < row + static_cast<size_t>(row_bytes); at += element) {
          if (magnitude(at) > magnitude(largest)) largest = at;
        }
        std::vector<std::byte> wrong = bytes;
        std::byte& low = wrong[largest + (element == 4 ? 1 : 0)];
        low = low ^ std::byte{2};
        EXPECT_THROW(tensor.check(scratch, 0, rows, wrong.data()), Error) << tensor.name();
        std::fill(wrong.begin(), wrong.end(), std::byte{0});
        EXPECT_THROW(tensor.check(scratch, 0, rows, wrong.data()), Error) << tensor.name();
      }
      EXPECT_GE(merged, 2);
    }
  }
}

TEST_F(MergedModel, WithNumbersThatAreNotFiniteIsNotWritten) {
  make_base(add_small_model, DType::kBF16);
  ThreadPool pool(1);
  make_adapter(add_small_model, merged_lora(ExpertLora::kSplit));
  ParameterStore store;
  describe(store, add_small_model);
  const Checkpoint base = Checkpoint::open(root_ / "base");
  const CheckpointMap map = map_checkpoint(base, store);
  load_adapter_values(root_ / "adapter", store, base, map, pool);
  for (Parameter& p : store.all()) {
    if (p.name().find("q_proj.lora_B") == std::string::npos) continue;
    p.value().whole().as<float>()[p.shape().numel() - 1] = std::numeric_limits<float>::quiet_NaN();
  }
  try {
    save_merged(root_ / "merged", store, base, map, pool, {});
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCheckFailed);
    EXPECT_THAT(error.message(), HasSubstr("q_proj.weight' has numbers that are not finite"));
  }
  EXPECT_TRUE(names_in_merged().empty());
}

TEST_F(MergedModel, RoundingThatLosesTheAdapterIsMeasured) {
  make_base(add_small_model, DType::kBF16);
  LoraOptions lora = merged_lora(ExpertLora::kSplit);
  lora.alpha = 1e-3;  // its change is far below a bfloat16 unit of the weights
  make_adapter(add_small_model, lora);
  EXPECT_GT(merge(add_small_model).lost, 0.9);
  EXPECT_LT(merge(add_small_model, {.dtype = DType::kF32}).lost, 0.01);
}

TEST_F(MergedModel, CarriedTensorsKeepTheirBytes) {
  const auto add = [](ParameterStore& store) {
    store.add({"model.layers.0.self_attn.q_proj.weight", {45, 20}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  };
  std::vector<float> values(45 * 20, 0.5f);
  {
    SafetensorsWriter writer(root_ / "base/model.safetensors",
                             {{"model.layers.0.self_attn.q_proj.weight", DType::kF32, {45, 20}},
                              {"mtp.x", DType::kF16, {3, 1}},
                              {"mtp.ids", DType::kI64, {2}}});
    writer.write(values.data(), values.size() * sizeof(float));
    writer.write("abcdef", 6);
    writer.write("0123456789ABCDEF", 16);
    writer.finish();
  }
  LoraOptions lora = merged_lora(ExpertLora::kSplit);
  lora.target_modules = {"attention"};
  make_adapter(add, lora);
  merge(add, {.dtype = DType::kBF16});
  const SafetensorsFile merged(root_ / "merged/model.safetensors");
  std::string x(6, '\0'), ids(16, '\0');
  merged.read(merged.at("mtp.x"), 0, x.data(), x.size());
  merged.read(merged.at("mtp.ids"), 0, ids.data(), ids.size());
  EXPECT_EQ(x, "abcdef");
  EXPECT_EQ(ids, "0123456789ABCDEF");
  EXPECT_EQ(merged.at("model.layers.0.self_attn.q_proj.weight").dtype, DType::kBF16);
}

TEST_F(MergedModel, AFileThatIsNotFinishedLeavesNothing) {
  const fs::path path = root_ / "merged/model.safetensors";
  const std::string text = "abcd";
  {
    PlacedWriter writer(path, {{"x", DType::kU8, {4}}, {"y", DType::kU8, {4}}});
    writer.write(1, 0, std::as_bytes(std::span(text)));
    std::vector<std::byte> read(4);
    writer.read(1, 0, read);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), std::as_bytes(std::span(text)).begin()));
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(names_in_merged().empty());
  EXPECT_THAT(testing::user_error([&] { PlacedWriter(root_ / "absent/model.safetensors", {}); }),
              HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace hone
