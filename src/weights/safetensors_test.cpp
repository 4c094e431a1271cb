#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/processor_time_testing.h"
#include "core/cpu/thread_pool.h"
#include "core/files/durable_file.h"
#include "core/files/folder_lock.h"
#include "core/files/root_testing.h"
#include "core/text/json.h"
#include "params/store_testing.h"
#include "weights/adapter.h"
#include "weights/card_file.h"
#include "weights/checkpoint.h"
#include "weights/manifest.h"
#include "weights/model_folder.h"
#include "weights/safetensors.h"
#include "weights/shard_writer.h"
#include "weights/tensor_pieces.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("hone_safetensors_" + std::to_string(getpid()));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void write_bytes(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  static std::string file_of(const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\x01');
  }
  /// The error of reading a file with this header.
  std::string error_of(const std::string& header, size_t data_bytes) const {
    write_bytes(file_of(header, data_bytes));
    return testing::user_error([&] { SafetensorsFile file(path_); });
  }

  std::filesystem::path path_;
};

TEST_F(Safetensors, ReadsWhatItWrote) {
  {
    SafetensorsWriter writer(path_, {{"a", DType::kF32, {2, 2}}, {"b", DType::kBF16, {3}}, {"s", DType::kF16, {}}});
    const float values[] = {1, -2, 3.5f, 0.25f};
    writer.write_floats(DType::kF32, values, 4);
    writer.write_floats(DType::kBF16, values, 3);
    writer.write_floats(DType::kF16, values + 2, 1);
    writer.finish();
  }
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.read_floats("a"), (std::vector<float>{1, -2, 3.5f, 0.25f}));
  EXPECT_EQ(file.read_floats("b"), (std::vector<float>{1, -2, 3.5f}));
  EXPECT_EQ(file.read_floats("s"), std::vector<float>{3.5f});
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("a").begin % 8, 0u);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_THROW(file.at("c"), UserError);
  EXPECT_THROW(file.read_integers("a"), UserError);
}

TEST_F(Safetensors, AnUnfinishedFileLeavesNothingBehind) {
  { SafetensorsWriter writer(path_, {{"a", DType::kF32, {4}}}); }
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".tmp"));
}

TEST_F(Safetensors, HostileHeadersAreRefusedByName) {
  const auto one = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };
  EXPECT_THAT(error_of("not json", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of("{\"w\":3}", 0), HasSubstr("'w' lacks"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4), HasSubstr("truncated"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 9), HasSubstr("belong to none"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[4,12])"), 12), HasSubstr("4 bytes before 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8), HasSubstr("needs 12"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8), HasSubstr("'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"Q4","shape":[2],"data_offsets":[0,8])"), 8), HasSubstr("Q4"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), HasSubstr("shape of 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,8])"), 8), HasSubstr("shape of 'w'"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[281474976710656,281474976710656],"data_offsets":[0,8])"), 8),
              HasSubstr("too large"));
  EXPECT_THAT(error_of(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), 8), HasSubstr("data_offsets"));
  EXPECT_THAT(error_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "v":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                       6),
              HasSubstr("overlap"));
  EXPECT_THAT(error_of(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                       4),
              HasSubstr("'w' appears twice"));
}

TEST_F(Safetensors, DeeplyNestedValuesDoNotExhaustTheStack) {
  const std::string nested = std::string(400'000, '[') + std::string(400'000, ']');
  EXPECT_NE(error_of("{\"w\":{\"dtype\":" + nested + R"(,"shape":[2],"data_offsets":[0,8]}})", 8), "");
  EXPECT_NE(error_of("{\"__metadata__\":{\"x\":" + nested + "}}", 0), "");
}

TEST_F(Safetensors, LengthsThatTheFileDoesNotHaveAreRefused) {
  write_bytes("abc");
  EXPECT_THROW(SafetensorsFile file(path_), UserError);
  write_bytes(std::string(8, '\xff'));
  EXPECT_THAT(testing::user_error([&] { SafetensorsFile file(path_); }), HasSubstr("header claims"));
  write_bytes(file_of("{}", 0).substr(0, 9));
  EXPECT_THROW(SafetensorsFile file(path_), UserError);
  EXPECT_THROW(SafetensorsFile file(path_.parent_path()), UserError);
  EXPECT_THROW(SafetensorsFile file(path_.string() + ".none"), UserError);
}

TEST_F(Safetensors, RandomDamageIsAnErrorOrReadsWithinBounds) {
  const std::string good = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
      32);
  PhiloxSequence random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(bytes.size());
      if (random.below(4) == 0) {
        bytes.erase(at, 1);
      } else {
        bytes[at] = static_cast<char>(random.below(256));
      }
    }
    write_bytes(bytes);
    try {
      const SafetensorsFile file(path_);
      for (const SafetensorsEntry& entry : file.entries()) {
        EXPECT_LE(entry.begin + entry.bytes, bytes.size());
        std::vector<char> destination(entry.bytes);
        file.read(entry, 0, destination.data(), entry.bytes);
      }
    } catch (const UserError&) {
    }
  }
}

TEST_F(Safetensors, ManyTensorsTakeATimeThatGrowsWithThem) {
  std::string header = "{";
  for (int i = 0; i < 200'000; ++i) {
    header += (i ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  write_bytes(file_of(header + "}", 0));
  const double begin = processor_seconds();
  EXPECT_EQ(SafetensorsFile(path_).entries().size(), 200'000u);
  EXPECT_LT(processor_seconds() - begin, 10);
}

TEST_F(Safetensors, ShapesHaveAFewDimensions) {
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]}})", 1),
              HasSubstr("'a' has 65 dimensions"));
}

TEST_F(Safetensors, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0644), 0);
  EXPECT_THAT(testing::user_error([&] { SafetensorsFile file(path_); }), HasSubstr("a pipe, not a regular file"));
}

/// The devices of this machine.
std::vector<Device> devices() {
  std::vector<Device> result = {Device{}};
  if (cuda::device_count() > 0) result.push_back({DeviceKind::kCuda, 0});
  return result;
}

TEST(TensorPieces, WhatIsWrittenInPiecesIsReadBack) {
  // More than two chunks of the reader, and not a multiple of the piece size.
  constexpr int64_t kCount = 9'000'001, kPiece = 1'000'000, kSkipped = 17;
  for (const Device device : devices()) {
    const Buffer buffer(device, kCount * sizeof(float));
    const Tensor tensor = buffer.tensor({kCount}, DType::kF32);
    PieceWriter writer(kPiece * sizeof(float));
    for (int64_t begin = 0; begin < kCount; begin += kPiece) {
      const int64_t count = std::min(kPiece, kCount - begin);
      auto* values = reinterpret_cast<float*>(writer.open(tensor, begin, count));
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(begin + i);
    }
    writer.finish();
    PieceReader reader;
    int64_t next = kSkipped, wrong = 0;
    reader.read(tensor, kSkipped, kCount - kSkipped, [&](const std::byte* elements, int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      std::memcpy(values.data(), elements, values.size() * sizeof(float));
      for (float value : values) wrong += value != static_cast<float>(next++);
    });
    EXPECT_EQ(next, kCount);
    EXPECT_EQ(wrong, 0);
  }
}

class OnDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / ("hone_pieces_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
};

constexpr testing::StoreSizes kSizes{.dtype = DType::kBF16};

TEST_F(OnDevices, AModelSavedFromOneDeviceIsLoadedOnTheOther) {
  for (const Device device : devices()) {
    ParameterStore store;
    testing::add_model(store, kSizes);
    store.allocate(device);
    testing::fill(store, 5);
    save_parameters(directory_, store, nullptr, nullptr, {.dtype = DType::kF32});
    for (const Device other : devices()) {
      ParameterStore loaded;
      testing::add_model(loaded, kSizes);
      loaded.allocate(other);
      const Checkpoint checkpoint = Checkpoint::open(directory_);
      ThreadPool pool(3);
      load_parameters(checkpoint, map_checkpoint(checkpoint, loaded), loaded, pool);
      for (const Parameter& parameter : loaded.all()) {
        const Parameter& original = *store.find(parameter.name());
        EXPECT_EQ(host_values<float>(stepped_value(parameter)), host_values<float>(stepped_value(original)));
        const auto ours = host_values<BFloat16>(parameter.value().whole()),
                   theirs = host_values<BFloat16>(original.value().whole());
        EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(BFloat16)), 0) << parameter.name();
      }
    }
  }
}

TEST_F(OnDevices, AnAdapterSavedFromOneDeviceIsLoadedOnTheOther) {
  const LoraOptions lora{.r = 2, .target_modules = {"attention", "all-experts"}, .target_parameters = {}};
  const auto make = [&](ParameterStore& store, Device device, uint64_t seed) {
    testing::add_model(store, kSizes);
    attach_lora(store, lora);
    store.allocate(device);
    testing::fill(store, seed);
  };
  for (const Device device : devices()) {
    ParameterStore store;
    make(store, device, 6);
    save_adapter(directory_, store, {.lora = lora, .base_model = ""});
    for (const Device other : devices()) {
      ParameterStore loaded;
      make(loaded, other, 7);
      load_adapter(directory_, loaded);
      for (const Parameter* parameter : loaded.trainable()) {
        EXPECT_EQ(host_values<float>(parameter->value().whole()),
                  host_values<float>(store.find(parameter->name())->value().whole()))
            << parameter->name();
      }
    }
  }
}

template <class T>
void expect_found() {
  const DType dtype = DTypeOf<T>::value;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = dtype == DType::kF16 ? 65504.0f : 3.38953139e38f;
  for (size_t count = 0; count < 20; ++count) {
    std::vector<T> values(count, T(-largest));
    for (size_t i = 0; i < count; i += 3) values[i] = T(largest);
    const auto finite = [&] {
      return all_finite(dtype, std::as_bytes(std::span(values)).data(), static_cast<int64_t>(count));
    };
    EXPECT_TRUE(finite()) << count;
    for (size_t i = 0; i < count; ++i) {
      for (const float lost : {infinity, -infinity, nan, -nan}) {
        const T before = values[i];
        values[i] = T(lost);
        EXPECT_FALSE(finite()) << i << " of " << count;
        values[i] = before;
      }
    }
  }
}

TEST(Finite, ANumberThatIsNotIsFoundAtAnyPlace) {
  expect_found<float>();
  expect_found<BFloat16>();
  expect_found<Float16>();
}

TEST(Finite, WhatIsNotIsNamed) {
  const float values[] = {1, std::numeric_limits<float>::infinity()};
  EXPECT_NO_THROW(require_finite("x", DType::kF32, std::as_bytes(std::span(values)).data(), 1));
  EXPECT_THROW(require_finite("x", DType::kF32, std::as_bytes(std::span(values)).data(), 2), Error);
}

namespace fs = std::filesystem;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    root_.write("a.json", "{}");
    root_.write("b.safetensors", big_);
    Manifest::of(root_.path(), {}).write(root_.path());
  }
  Manifest read() const { return *Manifest::read(root_.path()); }
  static std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

  const std::string big_ = std::string(5'000'000, 'a') + std::string(4'000'000, 'b');
  testing::TestRoot root_;
};

TEST_F(ManifestTest, SaysOfEveryFileHowLongItIsAndWhatItSumsUpTo) {
  const Manifest manifest = read();
  ASSERT_EQ(manifest.files().size(), 2u);
  EXPECT_EQ(manifest.files().at("a.json"), (FileChecksum{2, crc32c("{}")}));
  EXPECT_EQ(manifest.files().at("b.safetensors"), (FileChecksum{big_.size(), crc32c(big_)}));
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "");
  EXPECT_EQ(manifest.contents_problem(root_.path(), {}), "");
  EXPECT_FALSE(Manifest::read(root_ / "elsewhere"));
}

TEST_F(ManifestTest, FindsWhatIsMissingCutOrChanged) {
  const Manifest manifest = read();
  root_.write("a.json", "[]");
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "");
  EXPECT_NE(manifest.contents_problem(root_.path(), {}).find("a.json"), std::string::npos);
  EXPECT_EQ(manifest.contents_problem(root_.path(), {}, {"a.json"}), "");
  root_.write("a.json", "[1]");
  EXPECT_NE(manifest.sizes_problem(root_.path()).find("3 bytes, not 2"), std::string::npos);
  fs::remove(root_ / "a.json");
  EXPECT_EQ(manifest.sizes_problem(root_.path()), "a.json is missing");
}

TEST_F(ManifestTest, TakesWhatHasBeenReadFromTheLedger) {
  const Manifest manifest = read();
  const std::string name = "b.safetensors";
  FileLedger right;  // in any order, with gaps and overlaps
  right.add(name, 6'000'000, bytes(big_.substr(6'000'000, 1'000'000)));
  right.add(name, 1'000, bytes(big_.substr(1'000, 2'000)));
  right.add(name, 3'000, bytes(big_.substr(3'000, 9)));
  right.add(name, 2'000, bytes(big_.substr(2'000, 500)));
  EXPECT_EQ(manifest.contents_problem(root_.path(), right), "");
  FileLedger wrong;  // differs from the file's present contents
  wrong.add(name, 1'000, bytes(std::string(100, 'x')));
  EXPECT_NE(manifest.contents_problem(root_.path(), wrong), "");
  FileLedger of_two_ranks;
  of_two_ranks.merge(right.pieces());
  EXPECT_EQ(manifest.contents_problem(root_.path(), of_two_ranks), "");
  of_two_ranks.merge(wrong.pieces());
  FileLedger of_other_first;
  of_other_first.merge(wrong.pieces());
  EXPECT_NE(manifest.contents_problem(root_.path(), of_other_first), "");
}

TEST_F(ManifestTest, ADamagedOneIsAnErrorAndNamesNoOtherFolder) {
  for (const char* text : {"", "[]", "{\"version\": 1}", "{\"version\": 9, \"files\": {}}",
                           R"({"version": 1, "files": {"a": {"bytes": -1, "crc32c": "00000000"}}})",
                           R"({"version": 1, "files": {"a": {"bytes": 1, "crc32c": "zz"}}})",
                           R"({"version": 1, "files": {"../a": {"bytes": 1, "crc32c": "00000000"}}})"}) {
    root_.write(kManifestName, text);
    EXPECT_THROW(Manifest::read(root_.path()), UserError) << text;
  }
}

using testing::TestRoot;
using Names = std::vector<std::string>;

/// Writes a model of shards or of one file; every file contains `mark`.
void fill_with(const fs::path& folder, const std::string& mark, int shards) {
  const auto put = [&](const std::string& name) { write_durably(folder / name, mark); };
  put("config.json");
  if (shards == 0) return put("model.safetensors");
  for (int i = 1; i <= shards; ++i)
    put("model-0000" + std::to_string(i) + "-of-0000" + std::to_string(shards) + ".safetensors");
  put("model.safetensors.index.json");
}

FillFolder model(const std::string& mark, int shards) {
  return [=](const fs::path& temporary, FileChecksums&) { fill_with(temporary, mark, shards); };
}

/// The mark of the model that a loader finds: the index with its shards, or the single file; "" if none loads, "mixed"
/// if its files belong to two models.
std::string loads_as(const fs::path& folder, int shards) {
  const auto read = [&](const std::string& name) { return TestRoot::read(folder / name); };
  if (fs::exists(folder / "model.safetensors"))
    return read("model.safetensors") == read("config.json") ? read("config.json") : "mixed";
  if (!fs::exists(folder / "model.safetensors.index.json")) return "";
  const std::string mark = read("model.safetensors.index.json");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if ((name == "config.json" ||
         (name.starts_with("model-") && name.find("-of-0000" + std::to_string(shards)) != name.npos)) &&
        read(name) != mark)
      return "mixed";
  }
  return mark;
}

TEST(ModelFolder, ANewFolderAppearsWholeAndAFailureLeavesNothing) {
  const TestRoot root;
  write_directory(root / "deep/a/", model("one", 0));
  EXPECT_EQ(TestRoot::names_in(root / "deep/a"), (Names{"config.json", kManifestName, "model.safetensors"}));
  EXPECT_ANY_THROW(write_directory(root / "deep/b", [](const fs::path& temporary, FileChecksums&) {
    write_durably(temporary / "config.json", "x");
    throw std::runtime_error("disk full");
  }));
  EXPECT_EQ(TestRoot::names_in(root / "deep"), Names{"a"});
}

TEST(ModelFolder, OthersFoldersAndFilesStay) {
  const TestRoot root;
  root.write("a.tmp/notes");
  root.write("a.old/thesis.tex");
  write_directory(root / "a", model("one", 3));
  root.write("a/README.md", "mine");
  root.write("a/notes/thesis.tex");
  root.write("a/vocab.txt", "mine");
  write_directory(root / "a", model("two", 0));
  EXPECT_EQ(TestRoot::names_in(root / "a"),
            (Names{"README.md", "config.json", kManifestName, "model.safetensors", "notes", "vocab.txt"}));
  EXPECT_EQ(loads_as(root / "a", 0), "two");
  EXPECT_EQ(TestRoot::names_in(root.path()), (Names{"a", "a.old", "a.tmp"}));
}

TEST(ModelFolder, ACardIsReplacedUnlessAUserWroteIt) {
  const TestRoot root;
  const auto with_card = [&](const std::string& mark) -> FillFolder {
    return [=](const fs::path& temporary, FileChecksums&) {
      fill_with(temporary, mark, 0);
      write_durably(temporary / kCardName, std::string(kCardMarker) + "\n" + mark);
    };
  };
  const auto card = [&] { return TestRoot::read(root / "a/README.md"); };
  write_directory(root / "a", with_card("one"));
  EXPECT_FALSE(Manifest::read(root / "a")->files().contains(kCardName));  // it may be edited
  EXPECT_THAT(hone_files_in(root / "a"), ::testing::Contains(kCardName));
  write_directory(root / "a", with_card("two"));
  EXPECT_THAT(card(), ::testing::EndsWith("two"));
  write_directory(root / "a", model("three", 0));  // has none: the old card says nothing of it
  EXPECT_FALSE(fs::exists(root / "a/README.md"));
  root.write("a/README.md", "mine");
  write_directory(root / "a", with_card("four"));
  EXPECT_EQ(card(), "mine");
  EXPECT_EQ(loads_as(root / "a", 0), "four");
  EXPECT_THAT(hone_files_in(root / "a"), ::testing::Not(::testing::Contains(kCardName)));
  fs::remove(root / "a/README.md");
  root.write("elsewhere", std::string(kCardMarker) + "\n");
  fs::create_symlink(root / "elsewhere", root / "a/README.md");  // a link is the user's
  write_directory(root / "a", with_card("five"));
  EXPECT_TRUE(fs::is_symlink(root / "a/README.md"));
}

TEST(ModelFolder, WhatAKilledProgramLeftBesideAFolderIsRemovedWhereTheFolderExistsToo) {
  const TestRoot root;
  write_directory(root / "a", model("one", 0));
  root.write("a.hone-00000001.tmp/.hone-temporary");
  root.write("a.hone-00000001.tmp/merged/model.safetensors");
  root.write("b.hone-00000002.tmp/.hone-temporary");
  write_directory(root / "a", model("two", 0));
  EXPECT_EQ(TestRoot::names_in(root.path()), (Names{"a", "b.hone-00000002.tmp"}));
}

TEST(ModelFolder, WhatTheOldManifestNamesGoesWithTheOldModel) {
  const TestRoot root;
  write_directory(root / "a", [](const fs::path& temporary, FileChecksums&) {
    fill_with(temporary, "one", 0);
    write_durably(temporary / "tokenizer.model", "of the old model");
  });
  write_directory(root / "a", model("two", 2));
  EXPECT_FALSE(fs::exists(root / "a/tokenizer.model"));
  EXPECT_EQ(loads_as(root / "a", 2), "two");
}

TEST(ModelFolder, LinksAtFinalNamesAreReplacedAndALinkToTheFolderStays) {
  const TestRoot root;
  root.write("victim", "precious");
  fs::create_directories(root / "a");
  fs::create_symlink(root / "victim", root / "a/model.safetensors");
  fs::create_symlink(root / "victim", root / "a/config.json");
  fs::create_symlink(root / "a", root / "link");
  write_directory(root / "link", model("one", 0));
  EXPECT_EQ(TestRoot::read(root / "victim"), "precious");
  EXPECT_TRUE(fs::is_symlink(root / "link"));
  EXPECT_EQ(loads_as(root / "a", 0), "one");
  fs::create_directories(root / "b/model.safetensors/inner");
  EXPECT_THROW(write_directory(root / "b", model("one", 0)), UserError);
  EXPECT_EQ(TestRoot::names_in(root / "b"), Names{"model.safetensors"});
}

TEST(ModelFolder, AWriterThatHoldsTheLockIsNotDisturbed) {
  const TestRoot root;
  write_directory(root / "a", model("one", 0));
  const FolderLock lock(root / "a");
  EXPECT_THROW(write_directory(root / "a", model("two", 0)), UserError);
  EXPECT_EQ(loads_as(root / "a", 0), "one");
}

/// Numbers of shards of the old model and of the new one.
class KilledSave : public ::testing::TestWithParam<std::pair<int, int>> {};

/// Kills the save at increasing delays, so that every stage is hit.
TEST_P(KilledSave, LeavesTheOldModelTheNewOneOrNoneAndTheNextCommandFinishes) {
  const auto [before, after] = GetParam();
  std::set<std::string> seen;
  for (int moment = 0; moment < 12; ++moment) {
    const TestRoot root;
    write_directory(root / "a", model("one", before));
    const pid_t child = fork();
    if (child == 0) {
      write_directory(root / "a", model("two", after));
      _exit(0);
    }
    usleep(static_cast<useconds_t>(moment * 800));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string now =
        loads_as(root / "a", TestRoot::read(root / "a/model.safetensors.index.json") == "two" ? after : before);
    EXPECT_TRUE(now.empty() || now == "one" || now == "two") << now << " at moment " << moment;
    require_finished(root / "a");
    const bool is_new = TestRoot::read(root / "a/config.json") == "two";
    EXPECT_EQ(loads_as(root / "a", is_new ? after : before), is_new ? "two" : "one") << moment;
    seen.insert(now);
    write_directory(root / "a", model("three", after));
    EXPECT_EQ(loads_as(root / "a", after), "three");
    for (const std::string& name : TestRoot::names_in(root / "a")) EXPECT_FALSE(parse_temporary(name)) << name;
  }
  EXPECT_TRUE(seen.contains("one"));
}

INSTANTIATE_TEST_SUITE_P(Shards, KilledSave,
                         ::testing::Values(std::pair(3, 3), std::pair(0, 2), std::pair(2, 0), std::pair(3, 2)));

TEST(ModelFolder, AnUnfinishedSaveIsFinishedByAReaderOrRefused) {
  const TestRoot root;
  write_directory(root / "a", model("one", 0));
  const std::string staged = "a/model.hone-0123abcd.save/";
  root.write(staged + "config.json", "two");
  root.write(staged + "model.safetensors", "two");
  root.write(
      staged + ".hone-plan.json",
      R"({"remove": ["model.safetensors", "hone_manifest.json"], "install": ["config.json", "model.safetensors"]})");
  {
    const FolderLock run(root / "a");
    EXPECT_THROW(require_finished(root / "a"), UserError);
    EXPECT_EQ(loads_as(root / "a", 0), "one") << "nothing was touched";
  }
  EXPECT_NO_THROW(require_finished(root / "a"));
  EXPECT_EQ(TestRoot::names_in(root / "a"), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(loads_as(root / "a", 0), "two");
  root.write(staged + ".hone-plan.json", R"({"remove": ["../b"], "install": []})");
  EXPECT_THROW(require_finished(root / "a"), UserError) << "a plan that Hone did not write";
}

}  // namespace
}  // namespace hone
