// Decoders on bytes written by hand, as the format's definition has them, and on bytes that no writer would write.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "core/text/json.h"
#include "data/readers/parquet/bit_runs.h"
#include "data/readers/parquet/codecs.h"
#include "data/readers/parquet/deltas.h"
#include "data/readers/parquet/json_text.h"
#include "data/readers/parquet/page_memory.h"
#include "data/readers/parquet/page_values.h"
#include "data/readers/parquet/thrift_compact.h"

namespace hone::parquet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Octets = std::vector<uint8_t>;

/// The message of the fault that `run` meets, or "".
template <class Run>
std::string fault_of(const Run& run) {
  try {
    run();
  } catch (const ParquetFault& reason) {
    return reason.what();
  }
  return "";
}

TEST(BitRuns, ReadRunsAndPackedIntegersInTurn) {
  // Five times 4, then eight packed integers of three bits: 0 to 7.
  const Octets bytes = {10, 4, 3, 0x88, 0xC6, 0xFA};
  BitRuns runs(bytes, 3);
  std::vector<uint32_t> found(13);
  runs.read(found.data(), 7);
  runs.read(found.data() + 7, 6);
  EXPECT_THAT(found, ElementsAre(4, 4, 4, 4, 4, 0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_NE(fault_of([&] { runs.read(found.data(), 1); }), "");
}

TEST(BitRuns, WidthsOfNothingAndOfWholeWords) {
  const Octets none = {20}, wide = {2, 0xff, 0xff, 0xff, 0xff};
  std::vector<uint32_t> found(10, 7);
  BitRuns(none, 0).read(found.data(), 10);
  EXPECT_THAT(found, testing::Each(0u));
  BitRuns(wide, 32).read(found.data(), 1);
  EXPECT_EQ(found[0], 0xffffffffu);
  EXPECT_THAT(fault_of([&] { BitRuns(wide, 33); }), HasSubstr("33 bits"));
  EXPECT_NE(fault_of([&] { BitRuns(Octets{0x81, 0x80, 0x80, 0x80, 0x08, 1}, 8).read(found.data(), 10); }), "");
}

TEST(OldLevels, ArePackedFromTheMostSignificantBit) {
  const Octets bytes = {0b10'01'00'11, 0b01'000000};
  ByteCursor in(bytes);
  OldLevels levels(in, 5, 2);
  std::vector<uint8_t> found(5);
  levels.read(found.data(), 5);
  EXPECT_THAT(found, ElementsAre(2, 1, 0, 3, 1));
  EXPECT_EQ(in.left(), 0u);
}

TEST(Deltas, ReadBlocksAndWhatFollows) {
  // Blocks of 8 in one part; 3 values: 7, 5, 6. Differences -2 and 1: least -2, then 0 and 3 in two bits. One byte
  // after.
  const Octets bytes = {8, 1, 3, 14, 3, 2, 0b1100, 0, 99};
  Deltas deltas(bytes);
  ASSERT_EQ(deltas.after().size(), 1u);
  EXPECT_EQ(deltas.after()[0], 99);
  EXPECT_EQ(deltas.next(), 7);
  EXPECT_EQ(deltas.next(), 5);
  EXPECT_EQ(deltas.next(), 6);
  EXPECT_THAT(fault_of([&] { deltas.next(); }), HasSubstr("fewer values"));
}

TEST(Deltas, CountsThatAreNotThereEnd) {
  // A count of nearly 2^63 in blocks that take no bytes, and a block larger than any writer's.
  const Octets endless = {0x80, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0};
  EXPECT_NE(fault_of([&] { Deltas(endless).after(); }), "");
  EXPECT_THAT(fault_of([&] { Deltas(Octets{0x80, 0x80, 0x80, 0x80, 0x08, 1, 1, 0}); }), HasSubstr("blocks of"));
  EXPECT_THAT(fault_of([&] { Deltas(Octets{8, 0, 1, 0}); }), HasSubstr("in 0 parts"));
}

TEST(PrefixTexts, BeginWithTheTextBefore) {
  // Prefixes 0 and 3; the rests "abcd" and "x".
  const Octets bytes = {8, 1, 2, 0, 6, 0, 8, 1, 2, 8, 5, 0, 'a', 'b', 'c', 'd', 'x'};
  PrefixTexts texts(bytes);
  std::string text;
  texts.next(text);
  EXPECT_EQ(text, "abcd");
  texts.next(text);
  EXPECT_EQ(text, "abcx");
  Octets longer = bytes;
  longer[4] = 10;  // 5 bytes of a text of 4
  PrefixTexts wrong(longer);
  text.clear();
  wrong.next(text);
  EXPECT_THAT(fault_of([&] { wrong.next(text); }), HasSubstr("begins with 5 bytes of one that has 4"));
}

TEST(PageValues, IndicesAndEncodingsAreChecked) {
  Leaf leaf;
  leaf.physical = Physical::kInt32;
  const Values dictionary{{10, 20}, {}, {}};
  const Octets indices = {1, 2, 0, 2, 1, 2, 2};  // they have one bit each: 0, 1, and then 2
  PageValues page(leaf, Encoding::kRleDictionary, indices, &dictionary);
  Values values;
  page.read(2, values);
  EXPECT_THAT(values.numbers, ElementsAre(10, 20));
  EXPECT_THAT(fault_of([&] { page.read(1, values); }), HasSubstr("entry 2 of a dictionary of 2"));
  EXPECT_THAT(fault_of([&] { PageValues(leaf, Encoding::kRleDictionary, indices, nullptr); }),
              HasSubstr("needs a dictionary"));
  EXPECT_THAT(fault_of([&] { PageValues(leaf, Encoding::kDeltaByteArray, indices, nullptr); }),
              HasSubstr("the encoding 7"));
  EXPECT_NE(fault_of([&] { PageValues(leaf, Encoding::kPlain, indices, nullptr).read(2, values); }), "");
}

TEST(Codecs, AnswerOnlyWithTheSizeThatTheHeaderGives) {
  const Octets packed = {5, 0x10, 'h', 'e', 'l', 'l', 'o'};  // Snappy: 5 bytes, all as they are
  Octets out(5);
  decompress(Codec::kSnappy, packed, out.data(), 5);
  EXPECT_EQ(std::string(out.begin(), out.end()), "hello");
  for (const Codec codec :
       {Codec::kNone, Codec::kSnappy, Codec::kGzip, Codec::kBrotli, Codec::kZstd, Codec::kLz4Framed, Codec::kLz4}) {
    EXPECT_NE(fault_of([&] { decompress(codec, packed, out.data(), 4); }), "") << static_cast<int>(codec);
  }
}

TEST(ThriftReader, SkipsWhatItDoesNotKnowAndBoundsCounts) {
  // 1: i32 5, 2: list of two texts, 3: map of i32 to bool, 4: structure, 5: true; then the end.
  const Octets bytes = {0x15, 10, 0x19, 0x28, 1, 'a', 0, 0x1b, 1, 0x51, 4, 1, 0x1c, 0x15, 2, 0, 0x11, 0};
  ThriftReader in(bytes);
  int64_t first = 0;
  bool last = false;
  in.structure([&](int16_t id) {
    if (id == 1) first = in.integer();
    if (id == 5) last = in.boolean();
  });
  EXPECT_EQ(first, 5);
  EXPECT_TRUE(last);
  EXPECT_EQ(in.left(), 0u);
  const auto read_all = [](const Octets& all) { ThriftReader(all).structure([](int16_t) {}); };
  EXPECT_THAT(fault_of([&] { read_all({0x19, 0xf8, 0xff, 0xff, 0x7f}); }), HasSubstr("a list of"));
  EXPECT_THAT(fault_of([&] { read_all({0x18, 0xff, 0xff, 0x7f}); }), HasSubstr("end too early"));
  EXPECT_THAT(fault_of([&] { read_all(Octets(1000, 0x1c)); }), HasSubstr("nested too deep"));
  EXPECT_THAT(fault_of([&] { read_all(Octets(1000, 0x19)); }), HasSubstr("nested too deep"));
  EXPECT_THAT(fault_of([&] { read_all(Octets(20, 0xff)); }), HasSubstr("unknown type"));
}

TEST(JsonText, IsEscapedWhereverItIs) {
  for (const std::string special : {"\"", "\\", "\n", "\x01", "\x7f", "é", "漢", "😀"}) {
    for (size_t before = 0; before < 20; ++before) {
      const std::string text = std::string(before, 'a') + special + std::string(20 - before, 'b');
      std::string found;
      append_json_text(found, text);
      EXPECT_EQ(found, Json(text).dump());
    }
  }
  std::string out;
  for (const std::string text : {"\xff", "abcdefgh\xc3", "abcdefghabcdefg\xed\xa0\x80"}) {
    EXPECT_THAT(fault_of([&] { append_json_text(out, text); }), HasSubstr("is not UTF-8"));
  }
}

TEST(PageMemory, IsBoundedForAllBuffersTogether) {
  PageMemory memory(100);
  PageBuffer first(memory), second(memory);
  first.at_least(60);
  EXPECT_THAT(fault_of([&] { second.at_least(50); }), HasSubstr("need 110 bytes at once"));
  second.at_least(40);
  first.at_least(50);
  EXPECT_NE(fault_of([&] { second.at_least(41); }), "");
}

}  // namespace
}  // namespace hone::parquet
