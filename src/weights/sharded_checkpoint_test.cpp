#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/base/processor_time_testing.h"
#include "weights/pickle.h"
#include "weights/safetensors.h"
#include "weights/saved_tensor.h"
#include "weights/sharded_checkpoint.h"

namespace hone {
namespace {

using Kind = PickleValue::Kind;
using testing::HasSubstr;

std::string text(const char* word) {
  return std::string("\x8c") + static_cast<char>(std::string_view(word).size()) + word;
}

Pickle parse(const std::string& program, const std::set<std::string>& allowed = {}) {
  return Pickle::parse("\x80\x04" + program + ".", allowed, "file");
}

std::string problem(const std::string& program, const std::set<std::string>& allowed = {}) {
  try {
    parse(program, allowed);
  } catch (const UserError& error) {
    EXPECT_EQ(error.where(), "file");
    return error.message();
  }
  return "none";
}

TEST(Pickle, ReadsValues) {
  // {"a": (1, -2, 300), "b": [True, None, 2.5]}, with a memoized text.
  const Pickle pickle =
      parse(std::string("}(") + text("a") + "\x94" + "K\x01" + "J\xfe\xff\xff\xff" + "M\x2c\x01" + "\x87" + text("b") +
            "](" + "\x88" + "N" + std::string("G\x40\x04\0\0\0\0\0\0", 9) + "eu");
  const PickleValue* a = pickle.root().find("a");
  ASSERT_TRUE(a && a->is(Kind::kTuple) && a->items.size() == 3u);
  EXPECT_EQ(a->items[0]->integer, 1);
  EXPECT_EQ(a->items[1]->integer, -2);
  EXPECT_EQ(a->items[2]->integer, 300);
  const PickleValue* b = pickle.root().find("b");
  ASSERT_TRUE(b && b->is(Kind::kList) && b->items.size() == 3u);
  EXPECT_EQ(b->items[0]->integer, 1);
  EXPECT_TRUE(b->items[1]->is(Kind::kNone));
  EXPECT_TRUE(b->items[2]->is(Kind::kFloat));
  EXPECT_EQ(pickle.root().find("c"), nullptr);
}

TEST(Pickle, CallsAreDescribedAndNotMade) {
  const Pickle pickle =
      parse(text("torch") + text("Size") + "\x93" + "K\x02K\x03\x86\x85R}" + text("x") + "K\x07sb", {"torch.Size"});
  EXPECT_TRUE(pickle.root().is_object("torch.Size"));
  EXPECT_EQ(pickle.root().arguments->items[0]->items[1]->integer, 3);
  EXPECT_EQ(pickle.root().find("x")->integer, 7);
}

TEST(Pickle, ForeignNamesAreRefusedByName) {
  const std::string evil = "cos\nsystem\n" + text("touch owned") + "\x85R";
  EXPECT_THAT(problem(evil, {"torch.Size"}), HasSubstr("'os.system'"));
  EXPECT_THAT(problem(text("builtins") + text("eval") + "\x93", {"builtins.dict"}), HasSubstr("'builtins.eval'"));
  // A prefix or a dotted name is not accepted either.
  EXPECT_THAT(problem("ctorch\nSize.x\n", {"torch.Size"}), HasSubstr("'torch.Size.x'"));
  EXPECT_EQ(problem("ctorch\nSize\n", {"torch.Size"}), "none");
}

TEST(Pickle, CallsDoNotCopyTheirArguments) {
  // 2,000 calls get a tuple of a million values.
  std::string bytes = "(" + std::string(1'000'000, 'N') +
                      "tq\x01"
                      "0"
                      "ctorch\nSize\nq\x02"
                      "0"
                      "](";
  for (int i = 0; i < 2000; ++i) bytes += "h\x02h\x01R";
  const Pickle pickle = parse(bytes + "e", {"torch.Size"});
  ASSERT_EQ(pickle.root().items.size(), 2000u);
  EXPECT_EQ(pickle.root().items[0]->arguments, pickle.root().items[1999]->arguments);
  EXPECT_EQ(pickle.root().items[0]->arguments->items.size(), 1'000'000u);
}

TEST(Pickle, ManyValuesOfFewBytesAreRefused) {
  EXPECT_THAT(problem("](" + std::string(15'000'000, ']') + "e"), HasSubstr("more values than a file of its size"));
  EXPECT_THAT(problem(")" + std::string(15'000'000, '\x85')), HasSubstr("more values than a file of its size"));
  EXPECT_THAT(problem(std::string(17'000'000, 'N')), HasSubstr("stacks more values"));
  EXPECT_THAT(problem(std::string(1'000'000, '(')), HasSubstr("more marks"));
  // Numbers of a file are shared, so that the metadata of many ranks fit.
  std::string many = "](";
  for (int i = 0; i < 1'000'000; ++i) many += "K\x07K\x08\x86";
  EXPECT_EQ(problem(many + "e"), "none");
}

TEST(Pickle, FieldsOfAnObjectAreAmongItsFirst) {
  std::string state = "}(";
  for (int i = 0; i < 70; ++i) state += text(("k" + std::to_string(i)).c_str()) + "K" + static_cast<char>(i);
  const Pickle pickle = parse(state + "u");
  EXPECT_EQ(pickle.root().find("k63")->integer, 63);
  EXPECT_EQ(pickle.root().find("k64"), nullptr);
}

TEST(Pickle, CirclesEnd) {
  // A list that contains itself.
  const Pickle pickle = parse(std::string("]\x94h") + std::string(1, '\0') + "a");
  EXPECT_EQ(pickle.root().items.front(), &pickle.root());
}

TEST(Pickle, DamagedOnesAreErrors) {
  EXPECT_THAT(problem(""), HasSubstr("not one value"));
  EXPECT_THAT(problem("K\x01K\x01"), HasSubstr("not one value"));
  EXPECT_THAT(problem("0"), HasSubstr("lacks its operands"));
  EXPECT_THAT(problem("(0"), HasSubstr("lacks its operands"));
  EXPECT_THAT(problem("t"), HasSubstr("lacks its mark"));
  EXPECT_THAT(problem("h\x05"), HasSubstr("not remembered"));
  EXPECT_THAT(problem("}(K\x01u"), HasSubstr("key without a value"));
  EXPECT_THAT(problem("K\x01)R"), HasSubstr("not a class or function"));
  EXPECT_THAT(problem("K\x01K\x01"
                      "b"),
              HasSubstr("not an object"));
  EXPECT_THAT(problem("K\x01K\x01"
                      "a"),
              HasSubstr("takes none"));
  EXPECT_THAT(problem("\xff"), HasSubstr("0xff"));
  EXPECT_THAT(problem(std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9)), HasSubstr("cut off"));
  EXPECT_THAT(problem(std::string("\x8a\x09") + std::string(9, '\x01')), HasSubstr("larger than any size"));
  EXPECT_THAT(problem("ctorch"), HasSubstr("cut off"));
}

TEST(Pickle, EveryShortenedFileIsAnError) {
  const std::string program = "\x80\x04}(" + text("a") + "\x94" + "K\x01K\x02\x86" + text("b") + "](K\x03N" + "eu.";
  ASSERT_NO_THROW(Pickle::parse(program, {}, "file"));
  for (size_t length = 0; length < program.size(); ++length) {
    EXPECT_THROW(Pickle::parse(program.substr(0, length), {}, "file"), UserError) << length;
  }
}

namespace fs = std::filesystem;

const fs::path kCases = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/sharded";

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A copy of a case's checkpoint to be damaged.
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
  /// Opens the checkpoint and reads all tensors.
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
  const std::string name = "lm_head.weight";  // split by columns, with prefix "module."
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
  replace(".metadata", "__0_0.distcp", "../../../tmp");  // same length as the name
  EXPECT_THAT(problem(), HasSubstr("invalid file name"));
}

/// A handwritten pickle of torch.distributed.checkpoint.
class Pickler {
 public:
  static std::string number(int64_t value) {
    std::string bytes = "\x8a\x08";
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
    return bytes;
  }
  static std::string text(const std::string& words) {
    std::string bytes = "X";
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(words.size() >> (8 * i));
    return bytes + words;
  }
  static std::string object(const std::string& module, const std::string& name, const std::string& fields) {
    return "c" + module + "\n" + name + "\n)\x81}(" + fields + "ub";
  }
  static std::string size(const std::vector<int64_t>& sizes) {
    std::string bytes = "ctorch\nSize\n((";
    for (const int64_t value : sizes) bytes += number(value);
    return bytes + "ttR";
  }
  static std::string of_metadata(const std::string& name, const std::string& fields) {
    return object("torch.distributed.checkpoint.metadata", name, fields);
  }
  static std::string chunk(const std::vector<int64_t>& offsets, const std::vector<int64_t>& sizes) {
    return of_metadata("ChunkStorageMetadata", text("offsets") + size(offsets) + text("sizes") + size(sizes));
  }

  struct Box {
    std::vector<int64_t> offsets, sizes;
  };
  /// Adds a float32 tensor whose chunks are all in a.distcp.
  void add(const std::string& key, const std::vector<int64_t>& shape, const std::vector<Box>& chunks) {
    std::string list = "](";
    for (const Box& box : chunks) {
      list += chunk(box.offsets, box.sizes);
      place(key, box.offsets);
    }
    add_listed(key, shape, list + "e");
  }
  /// As add(), with the pickled list of chunks.
  void add_listed(const std::string& key, const std::vector<int64_t>& shape, const std::string& list) {
    const std::string properties =
        "ctorch.distributed.checkpoint.metadata\nTensorProperties\n)\x81"
        "(ctorch\nfloat32\ntb";
    tensors_ += text(key) + of_metadata("TensorStorageMetadata", text("properties") + properties + text("size") +
                                                                     size(shape) + text("chunks") + list);
  }
  void place(const std::string& key, const std::vector<int64_t>& offsets) {
    places_ +=
        of_metadata("MetadataIndex", text("fqn") + text(key) + text("offset") + size(offsets)) +
        object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
               text("relative_path") + text("a.distcp") + text("offset") + number(0) + text("length") + number(1000));
  }
  std::string bytes() const {
    return "\x80\x02" +
           of_metadata("Metadata", text("state_dict_metadata") + "}(" + tensors_ + "u" + text("storage_data") + "}(" +
                                       places_ + "u") +
           ".";
  }

 private:
  std::string tensors_, places_;
};

class Described : public Damaged {
 protected:
  Described() { write("a.distcp", std::string(1000, '\0')); }
  ~Described() override { EXPECT_LT(processor_seconds() - begin_, 10); }
  std::string opening(const Pickler& pickler) const {
    write(".metadata", pickler.bytes());
    try {
      ShardedCheckpoint::open(folder_);
    } catch (const UserError& error) {
      return error.message();
    }
    return "none";
  }

 private:
  double begin_ = processor_seconds();
};

TEST_F(Described, ChunksOfAnyGridAreTakenAndOverlapsAreNot) {
  using Boxes = std::vector<Pickler::Box>;
  const auto of = [&](const std::vector<int64_t>& shape, const Boxes& boxes) {
    Pickler pickler;
    pickler.add("w", shape, boxes);
    return opening(pickler);
  };
  EXPECT_EQ(of({6}, {{{0}, {2}}, {{2}, {4}}, {{6}, {0}}}), "none") << "the last rank has nothing";
  EXPECT_EQ(of({}, {{{}, {}}}), "none");
  // A pinwheel: no line separates its chunks.
  const Boxes wheel = {{{0, 0}, {2, 1}}, {{0, 1}, {1, 2}}, {{1, 2}, {2, 1}}, {{2, 0}, {1, 2}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(of({3, 3}, wheel), "none");
  Boxes columns, grid;
  for (int64_t i = 0; i < 64; ++i) columns.push_back({{0, i}, {3, 1}});
  for (int64_t i = 0; i < 100; ++i) grid.push_back({{i / 10, i % 10, 0}, {1, 1, 2}});
  EXPECT_EQ(of({3, 64}, columns), "none");
  EXPECT_EQ(of({10, 10, 2}, grid), "none");
  grid[40] = {{4, 1, 0}, {1, 1, 2}};  // equal to its neighbour, so that one box is not covered
  EXPECT_THAT(of({10, 10, 2}, grid), HasSubstr("overlap"));
  columns[3] = {{0, 4}, {3, 1}};
  EXPECT_THAT(of({3, 64}, columns), HasSubstr("overlap"));
  Boxes crossed = wheel;
  crossed[0] = {{0, 0}, {1, 2}};
  EXPECT_THAT(of({3, 3}, crossed), HasSubstr("overlap"));
}

TEST_F(Described, ManyChunksAreNotComparedWithEachOther) {
  Pickler pickler;
  std::vector<Pickler::Box> rows, columns;
  for (int64_t i = 0; i < 16000; ++i) rows.push_back({{i, 0}, {1, 1}});
  for (int64_t i = 0; i < 16000; ++i) columns.push_back({{0, i}, {1, 1}});
  for (int tensor = 0; tensor < 4; ++tensor) {
    pickler.add("rows" + std::to_string(tensor), {16000, 1}, rows);
    pickler.add("columns" + std::to_string(tensor), {1, 16000}, columns);
  }
  EXPECT_EQ(opening(pickler), "none");
}

TEST_F(Described, ChunksSharedByManyTensorsAreRefused) {
  Pickler pickler;
  std::string list = "](" + Pickler::chunk({0}, {0}) + "r\x07" + std::string(3, '\0');
  for (int i = 0; i < 16000; ++i) list += "h\x07";
  for (int i = 0; i < 400; ++i) {
    const std::string key = "t" + std::to_string(i);
    pickler.place(key, {0});
    pickler.add_listed(key, {0}, i == 0 ? list + "er\x09" + std::string(3, '\0') : "h\x09");
  }
  EXPECT_THAT(opening(pickler), HasSubstr("more chunks than a file of its size"));
}

TEST_F(Described, WhatTheFilesDoNotHaveIsNotAllocated) {
  Pickler pickler;
  pickler.add("w", {1 << 24, 1 << 23}, {{{0, 0}, {1 << 24, 1 << 23}}});
  EXPECT_THAT(opening(pickler), HasSubstr("elements in 1000 bytes"));
  Pickler long_name;
  long_name.add(std::string(1'000'000, 'm'), {1}, {{{0}, {1}}});
  EXPECT_THAT(opening(long_name), HasSubstr("a name has 1000000 bytes"));
  Pickler deep;
  deep.add("w", std::vector<int64_t>(1000, 1), {});
  EXPECT_THAT(opening(deep), HasSubstr("1000 dimensions"));
}

TEST_F(Damaged, ChunksOfAnotherTensorAreRefused) {
  // Swaps the files of the ranks: the last rank's chunks of some tensors are smaller or elsewhere.
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

/// Whichever bytes change, reading ends with a tensor or a UserError: no crash, no endless loop.
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
