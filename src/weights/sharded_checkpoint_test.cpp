#include "weights/sharded_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/philox.h"
#include "weights/safetensors.h"
#include "weights/saved_tensor.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kCases = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/sharded";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A copy of a case's checkpoint that may be damaged.
class Damaged : public testing::Test {
 protected:
  Damaged()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_sharded_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::copy(kCases / "fsdp2_qwen3_moe/pytorch_model_fsdp_0", folder_);
  }
  ~Damaged() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  /// Replaces the first occurrence.
  void replace(const std::string& name, const std::string& from, const std::string& to) const {
    std::string bytes = read(folder_ / name);
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(name, bytes.replace(at, from.size(), to));
  }
  /// Opens and reads everything.
  void use() const {
    const ShardedCheckpoint checkpoint = ShardedCheckpoint::open(folder_);
    for (const auto& [name, tensor] : checkpoint.tensors()) checkpoint.read(tensor);
  }
  std::string problem() const {
    try {
      use();
    } catch (const UserError& error) {
      EXPECT_THAT(error.where(), HasSubstr(folder_.string()));
      return error.message();
    }
    return "none";
  }

  fs::path folder_;
};

TEST(ShardedCheckpoint, PutsTheChunksOfTheRanksTogether) {
  const ShardedCheckpoint checkpoint = ShardedCheckpoint::open(kCases / "fsdp2_qwen3_moe/pytorch_model_fsdp_0");
  const SafetensorsFile tuned(kCases / "fsdp2_qwen3_moe/tuned/model.safetensors");
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  const ShardedCheckpoint::Tensor& tensor = checkpoint.tensors().at(name);
  EXPECT_EQ(tensor.dtype, DType::kBF16);
  EXPECT_EQ(tensor.chunks.size(), 2u);
  const SafetensorsEntry& entry = tuned.at(name);
  EXPECT_EQ(tensor.shape, entry.shape);
  std::vector<std::byte> expected(entry.bytes);
  tuned.read(entry, 0, expected.data(), expected.size());
  EXPECT_EQ(checkpoint.read(tensor), expected);
}

TEST(ShardedCheckpoint, ChunksMayCutAnyDimension) {
  const ShardedCheckpoint checkpoint = ShardedCheckpoint::open(kCases / "scattermoe_mixtral/pytorch_model_fsdp_0");
  const SafetensorsFile tuned(kCases / "scattermoe_mixtral/tuned/model.safetensors");
  const std::string name = "lm_head.weight";  // cut by columns, below "module."
  const ShardedCheckpoint::Tensor& tensor = checkpoint.tensors().at(name);
  EXPECT_EQ(tensor.chunks.at(1).offsets, (std::vector<int64_t>{0, 4}));
  const std::vector<std::byte> bytes = checkpoint.read(tensor);
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  EXPECT_EQ(std::vector<float>(values, values + tensor.numel()), tuned.read_floats(name));
}

TEST_F(Damaged, TheCopyIsWhole) { EXPECT_EQ(problem(), "none"); }

TEST_F(Damaged, ForeignClassesAreNotMade) {
  replace(".metadata", "TensorStorageMetadata", "TensorStorageEvildata");
  EXPECT_THAT(problem(), HasSubstr("torch.distributed.checkpoint.metadata.TensorStorageEvildata"));
}

TEST_F(Damaged, ForeignClassesInTensorsAreNotMade) {
  replace("__0_0.distcp", "torch._utils\n_rebuild_tensor_v2", "builtins....\nexec..............");
  EXPECT_THAT(problem(), HasSubstr("builtins....."));
}

TEST_F(Damaged, MissingAndShortenedFilesAreNamed) {
  fs::resize_file(folder_ / "__1_0.distcp", 5000);
  EXPECT_THAT(problem(), HasSubstr("it should end at byte"));
  fs::remove(folder_ / "__1_0.distcp");
  EXPECT_THAT(problem(), HasSubstr("cannot be read"));
}

TEST_F(Damaged, FilesOutsideOfTheFolderAreRefused) {
  replace(".metadata", "__0_0.distcp", "../0_0.distcp");
  EXPECT_NE(problem(), "none");
  fs::copy_file(kCases / "fsdp2_qwen3_moe/pytorch_model_fsdp_0/.metadata", folder_ / ".metadata",
                fs::copy_options::overwrite_existing);
  replace(".metadata", "__0_0.distcp", "../../../tmp");  // as long as the name
  EXPECT_THAT(problem(), HasSubstr("a file is called"));
}

TEST_F(Damaged, ChunksOfAnotherTensorAreRefused) {
  // The files of the ranks change places: the last rank's chunks of some tensors are smaller or elsewhere.
  const std::string first = read(folder_ / "__0_0.distcp");
  write("__0_0.distcp", first.substr(100) + first.substr(0, 100));
  EXPECT_THAT(problem(), HasSubstr("broken tensor archive"));
}

TEST_F(Damaged, CompressedArchivesAreRefused) {
  // The compression method in the first archive's directory.
  std::string bytes = read(folder_ / "__0_0.distcp");
  const size_t at = bytes.find("PK\x01\x02");
  bytes[at + 10] = 8;
  write("__0_0.distcp", bytes);
  EXPECT_THAT(problem(), HasSubstr("is compressed"));
}

/// Whatever bytes change, reading ends with a tensor or an error of the user's: no crash, no endless loop.
TEST_F(Damaged, AnyByteMayBeWrong) {
  PhiloxSequence random(7);
  for (const char* name : {".metadata", "__0_0.distcp"}) {
    const std::string whole = read(folder_ / name);
    for (int round = 0; round < 400; ++round) {
      std::string bytes = whole;
      for (int i = 0; i < 3; ++i) bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      write(name, bytes);
      try {
        use();
      } catch (const UserError&) {
      }
    }
    for (size_t length = 0; length < whole.size(); length += 97) {
      write(name, whole.substr(0, length));
      EXPECT_THROW(use(), UserError) << name << " of " << length << " bytes";
    }
    write(name, whole);
  }
}

}  // namespace
}  // namespace hone
