// Tests of checkpoints that several ranks write: the bytes are those of one rank. Ranks are threads here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "core/text/json.h"
#include "device_main.h"
#include "dist/transport/thread_ranks.h"
#include "session/device_facts.h"
#include "session/loaded_model.h"
#include "test_communicators.h"
#include "train/plan/rank_writers.h"
#include "train/save/training_state.h"
#include "weights/adapter.h"
#include "weights/manifest.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::array kStages = {ZeroStage::kNone, ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues};
constexpr std::array kParts = {StatePart::kValue,   StatePart::kM,     StatePart::kMScales, StatePart::kV,
                               StatePart::kVScales, StatePart::kVRows, StatePart::kVColumns};

/// A model with its training state, and how it is saved.
struct Saved {
  std::string model = "qwen3_moe";
  DType dtype = DType::kF32;
  std::string adapter = {};  ///< folder in the case; "": the whole model is trained
  AdapterLayout layout = AdapterLayout::kAsTrained;
  TrainingFormats formats = {};
  std::string base = "dtype";
  Offload offload = {};
  int64_t max_shard_size = 100'000;  ///< several shards
};

/// Ranks that write it.
struct Writers {
  int ranks = 1;
  ZeroStage stage = ZeroStage::kNone;
  bool lazy = false;  ///< transfers are as late as possible
};

class RankWriting : public ::testing::Test {
 protected:
  RankWriting()
      : folder_(fs::path(::testing::TempDir()) /
                (std::string("hone_writers_") + ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
  }
  ~RankWriting() override { fs::remove_all(folder_); }

  static fs::path case_of(const Saved& saved) { return test_run().fixtures / "goldens" / saved.model; }

  static std::unique_ptr<LoadedModel> load(const Saved& saved, const RankShare& share, Stream& stream) {
    auto model = std::make_unique<LoadedModel>(case_of(saved) / "model", saved.dtype);
    TrainableOptions options;
    options.adapter = saved.adapter.empty() ? fs::path() : case_of(saved) / saved.adapter;
    options.train_base = options.train_router = saved.adapter.empty();
    options.formats = saved.formats;
    options.ranks = share;
    options.ranks.offload = saved.offload;
    options.ranks.least_sharded_elements = 0;
    hold_base_as(options, BaseFormat::parse(saved.base, "base"));
    model->set_trainable(options);
    model->load(stream.device(), stream.pool(), 0);
    fill(model->store());
    return model;
  }

  /// Gives every element of the training state a value that depends on its place in the global tensor alone.
  static void fill(ParameterStore& store) {
    for (const Parameter& parameter : store.all()) {
      if (!parameter.trainable()) continue;
      for (const StatePart part : kParts) {
        const StateTensor state = state_tensor(parameter, part);
        if (!state.kept() || state.slice.count == 0) continue;
        const auto salt = static_cast<int64_t>(parameter.index()) * 7 + static_cast<int64_t>(part);
        std::vector<std::byte> bytes(static_cast<size_t>(state.slice.count) * size_of(state.dtype));
        for (int64_t i = 0; i < state.slice.count; ++i) {
          const int64_t number = ((state.slice.begin + i + salt) * 2654435761 >> 4) % 4001;
          if (state.dtype == DType::kF32) {
            reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(number - 2000) / 1024;
          } else if (state.dtype == DType::kBF16) {
            reinterpret_cast<BFloat16*>(bytes.data())[i] = BFloat16(static_cast<float>(number - 2000));
          } else {
            bytes[static_cast<size_t>(i)] = static_cast<std::byte>(number);
          }
        }
        copy_from_host(state.here, bytes.data(), bytes.size());
      }
    }
  }

  static std::vector<TensorFile> files_of(LoadedModel& model, const Saved& saved) {
    std::vector<TensorFile> files =
        model.lora() ? adapter_files(model.store(), {.lora = *model.lora(), .layout = saved.layout, .base_model = ""})
                     : parameter_files(model.store(), &model.checkpoint(), &model.map(),
                                       {.max_shard_size = saved.max_shard_size, .finite = true});
    files.push_back(training_state_file(model.store()));
    return files;
  }

  static std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      contents[entry.path().filename().string()] = std::string(std::istreambuf_iterator<char>(file), {});
    }
    return contents;
  }

  /// Writes the files; checks their checksums, and that every rank has written some of a larger model. Returns whether
  /// state travelled.
  bool write(const Saved& saved, const Writers& by, const std::string& name) {
    const fs::path folder = folder_ / name;
    fs::remove_all(folder);
    fs::create_directories(folder);
    bool travelled = false;
    FileChecksums checksums;
    run_ranks(by.ranks, [&](Communicator& threads) {
      std::optional<HostedCommunicator> hosted;
      std::optional<LazyCommunicator> lazy;
      Communicator* ranks = &threads;
      if (on_gpu()) ranks = &hosted.emplace(threads);
      if (by.lazy) ranks = &lazy.emplace(threads);
      ThreadPool pool(2);
      Stream stream(choose_device(test_run().device), pool);
      const auto model = load(saved, {.rank = ranks->rank(), .ranks = by.ranks, .stage = by.stage}, stream);
      const std::vector<TensorFile> files = files_of(*model, saved);
      if (by.ranks == 1) return write_files(folder, files, &checksums, &pool);
      std::set<int> writing;
      for (const FilePart& part : deal(files, by.ranks)) {
        writing.insert(part.writer);
        if (ranks->rank() == 0) travelled |= part.travels;
      }
      EXPECT_EQ(writing.size(), static_cast<size_t>(by.ranks));
      RankWriters writers(*ranks, by.ranks, stream, pool, files);
      ranks->rank() == 0 ? writers.write(folder, checksums) : writers.serve();
    });
    EXPECT_EQ(Manifest::of(folder, {}).files(), checksums);
    return travelled;
  }

  /// Checks that so many ranks write the bytes of one rank in every stage; returns whether state travelled in stage 3.
  bool expect_same_bytes(const Saved& saved, const std::vector<int>& numbers = {2, 4}) {
    write(saved, {}, "one");
    const auto expected = contents(folder_ / "one");
    bool travelled = false;
    for (const int ranks : numbers) {
      for (const ZeroStage stage : kStages) {
        if (saved.adapter == "lora_dora_init" && stage == ZeroStage::kValues) continue;  // refused
        SCOPED_TRACE(saved.model + saved.adapter + ", " + std::to_string(ranks) + " ranks, stage " +
                     std::to_string(static_cast<int>(stage)));
        travelled |= write(saved, {ranks, stage}, "several") && stage == ZeroStage::kValues;
        const auto found = contents(folder_ / "several");
        EXPECT_EQ(found.size(), expected.size());
        for (const auto& [name, bytes] : expected) {
          const auto file = found.find(name);
          EXPECT_TRUE(file != found.end() && file->second == bytes) << name;
        }
      }
    }
    return travelled;
  }

  fs::path folder_;
};

TEST_F(RankWriting, HasTheBytesOfOneRank) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_FALSE(expect_same_bytes({.dtype = dtype})) << "files in the order of memory need no transfer";
  }
  EXPECT_GT(contents(folder_ / "one").size(), 3u) << "several shards";
  expect_same_bytes({.model = "deepseek_v3", .max_shard_size = 5'000'000'000});
  expect_same_bytes({.model = "qwen3_5_moe_vl"});  // with tensors that are carried
  expect_same_bytes({.model = "llama", .dtype = DType::kBF16});
}

TEST_F(RankWriting, BringsMatricesThatTheFileHoldsInAnotherOrder) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) EXPECT_TRUE(expect_same_bytes({"gpt_oss", dtype}));
  if (on_gpu()) return;  // transfers that are late are of host memory
  const auto expected = contents(folder_ / "one");
  EXPECT_TRUE(write({"gpt_oss", DType::kBF16}, {3, ZeroStage::kValues, true}, "late"));
  EXPECT_TRUE(contents(folder_ / "late") == expected);
}

TEST_F(RankWriting, KeepsNarrowFormatsAndWhatIsOffloaded) {
  const TrainingFormats codes{.m = DType::kI8, .v = DType::kU8},
      narrow{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kBF16, .v = DType::kBF16};
  expect_same_bytes({.dtype = DType::kBF16, .formats = codes});
  expect_same_bytes({.dtype = DType::kBF16, .formats = narrow});
  expect_same_bytes({.dtype = DType::kBF16, .offload = {.optimizer = true}});
  expect_same_bytes({.model = "gpt_oss", .dtype = DType::kBF16, .offload = {.optimizer = true}});
  for (const char* model : {"qwen3_moe", "gpt_oss"}) {
    const Saved saved{.model = model, .offload = {.optimizer = true, .params = true}};
    write(saved, {}, "one");
    write(saved, {3, ZeroStage::kValues}, "several");
    EXPECT_TRUE(contents(folder_ / "several") == contents(folder_ / "one")) << model;
  }
}

TEST_F(RankWriting, HasTheBytesOfOneRankForAdaptersInEveryLayout) {
  using enum AdapterLayout;
  bool travelled = false;
  for (const AdapterLayout layout : {kAsTrained, kSplit, kTargetParameters, kKt, kSglang}) {
    SCOPED_TRACE(static_cast<int>(layout));
    for (const char* adapter : {"lora_attention_init", "lora_experts_init", "split_adapter"}) {
      const bool fits = layout != kKt || adapter != std::string("lora_attention_init");
      if (fits) travelled |= expect_same_bytes({.adapter = adapter, .layout = layout}, {3});
    }
  }
  EXPECT_TRUE(travelled);
  expect_same_bytes({.adapter = "lora_dora_init"}, {3});
  // Beside a packed base, which is not saved.
  for (const char* base : {"nf4", "fp8"}) {
    expect_same_bytes({.dtype = DType::kBF16, .adapter = "lora_experts_init", .base = base}, {3});
  }
}

/// A tensor without state, whose elements rank `failing` cannot make.
class FailingSource : public TensorSource {
 public:
  explicit FailingSource(bool fails) : fails_(fails) {}
  std::vector<StateRange> state_of(Slice) const override { return {}; }
  void make(Slice elements, StateReader&, const PutBytes& put) const override {
    if (fails_) throw UserError("the file cannot be written: No space left on device", "model.safetensors");
    put(std::vector<std::byte>(static_cast<size_t>(elements.count)));
  }

 private:
  bool fails_;
};

TEST_F(RankWriting, AWriterThatFailsEndsTheSaveOfAllWithItsError) {
  fs::create_directories(folder_);
  std::array<std::string, 3> messages;
  const auto save = [&](Communicator& ranks) {
    ThreadPool pool(2);
    Stream stream(Device{}, pool);
    const auto source = std::make_shared<const FailingSource>(ranks.rank() == 1);
    const TensorFile file{"model.safetensors", {{{"x", DType::kU8, {5 << 20}}, source}}};
    RankWriters writers(ranks, ranks.size(), stream, pool, {&file, 1});
    FileChecksums checksums;
    try {
      ranks.rank() == 0 ? writers.write(folder_, checksums) : writers.serve();
      if (ranks.rank() > 0) ranks.control().barrier();
    } catch (const Error& error) {
      messages[static_cast<size_t>(ranks.rank())] = error.message();
      throw;
    }
  };
  EXPECT_THROW(run_ranks(3, save), Error);
  EXPECT_THAT(messages[1], HasSubstr("No space left on device"));
  for (const size_t rank : {0u, 2u}) {
    EXPECT_THAT(messages[rank], HasSubstr("rank 1 failed: the file cannot be written: No space left")) << rank;
  }
}

TEST_F(RankWriting, ReplicatedTensorsAreDealtEvenlyInFewParts) {
  const auto source = std::make_shared<const FailingSource>(false);
  std::vector<TensorFile> files(3);
  for (size_t f = 0; f < files.size(); ++f) {
    files[f].name = std::to_string(f);
    for (const int64_t megabytes : {1, 700, 3, 128}) {
      files[f].tensors.push_back({{std::to_string(megabytes), DType::kU8, {megabytes << 20}}, source});
    }
  }
  std::map<int, int64_t> bytes, runs;
  std::map<std::pair<size_t, size_t>, int64_t> ends;
  const FilePart* before = nullptr;
  const std::vector<FilePart> parts = deal(files, 4);
  for (const FilePart& part : parts) {
    int64_t& end = ends[{part.file, part.tensor}];
    EXPECT_EQ(part.elements.begin, end) << "in order, without gaps";
    EXPECT_LE(part.elements.count, 64 << 20);
    end = part.elements.end();
    bytes[part.writer] += part.elements.count;
    runs[part.writer] += before == nullptr || before->writer != part.writer;
    before = &part;
  }
  for (size_t f = 0; f < files.size(); ++f) {
    for (size_t t = 0; t < 4; ++t) EXPECT_EQ((ends[{f, t}]), files[f].tensors[t].announced.numel());
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_NEAR(static_cast<double>(bytes[rank] >> 20), 3 * 832 / 4.0, 1.0) << "of MiB, cut at whole ones";
    EXPECT_EQ(runs[rank], 1) << "one run of all files";
  }
}

TEST_F(RankWriting, ReadsItsPartOfTheTrainingStateAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Saved saved{.dtype = dtype};
    write(saved, {}, "one");
    write_run_state(folder_ / "one", {});
    const auto file_bytes = static_cast<int64_t>(fs::file_size(folder_ / "one/training_state.safetensors"));
    for (const ZeroStage stage : kStages) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", stage " + std::to_string(static_cast<int>(stage)));
      std::array<int64_t, 4> read{};
      run_ranks(4, [&](Communicator& ranks) {
        ThreadPool pool(1);
        Stream stream(choose_device(test_run().device), pool);
        const auto model = load(saved, {.rank = ranks.rank(), .ranks = 4, .stage = stage}, stream);
        FileLedger ledger;
        load_training_state(folder_ / "one", model->store(), &ledger);
        const Json pieces = ledger.pieces();
        for (const auto& [file, runs] : pieces.items()) {
          for (const Json& run : runs) {
            read[static_cast<size_t>(ranks.rank())] += run.at(1).get<int64_t>() - run.at(0).get<int64_t>();
          }
        }
      });
      for (const int64_t bytes : read) {
        if (stage == ZeroStage::kNone) {
          EXPECT_GT(bytes, file_bytes * 9 / 10) << "all but the header";
        } else {
          EXPECT_LT(bytes, file_bytes * 3 / 10) << "a quarter; parts end at multiples of 256 elements";
        }
      }
    }
  }
}

}  // namespace
}  // namespace hone
