#include "report/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/checksum.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

// A reader written from the format's description, independent of the writer: it fails the test on any byte that does
// not fit.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }

  std::string_view take(size_t count) {
    EXPECT_LE(count, bytes_.size());
    const auto result = bytes_.substr(0, count);
    bytes_.remove_prefix(std::min(count, bytes_.size()));
    return result;
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    const auto raw = take(bytes);
    for (size_t i = raw.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = fixed(1);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return value;
  }

 private:
  std::string_view bytes_;
};

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  uint64_t session_status = 0;
  std::vector<std::pair<std::string, float>> scalars;
};

void read_value(std::string_view bytes, Event& event) {
  Reader value(bytes);
  EXPECT_EQ(value.varint(), 1u << 3 | 2u);
  const std::string tag(value.take(value.varint()));
  EXPECT_EQ(value.varint(), 2u << 3 | 5u);
  event.scalars.emplace_back(tag, std::bit_cast<float>(static_cast<uint32_t>(value.fixed(4))));
  EXPECT_TRUE(value.done());
}

Event read_event(std::string_view bytes) {
  Event event;
  Reader reader(bytes);
  while (!reader.done()) {
    const uint64_t key = reader.varint();
    if (key == (1 << 3 | 1)) {
      event.wall_time = std::bit_cast<double>(reader.fixed(8));
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<int64_t>(reader.varint());
    } else if (key == (3 << 3 | 2)) {
      event.file_version = reader.take(reader.varint());
    } else if (key == (5 << 3 | 2)) {
      Reader summary(reader.take(reader.varint()));
      while (!summary.done()) {
        EXPECT_EQ(summary.varint(), 1u << 3 | 2u);
        read_value(summary.take(summary.varint()), event);
      }
    } else if (key == (7 << 3 | 2)) {
      Reader session(reader.take(reader.varint()));
      EXPECT_EQ(session.varint(), 1u << 3 | 0u);
      event.session_status = session.varint();
    } else {
      ADD_FAILURE() << "unknown field " << key;
      return event;
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  const std::string file = read_text(path);
  Reader reader(file);
  std::vector<Event> events;
  while (!reader.done() && !testing::Test::HasFailure()) {
    const auto length_bytes = reader.take(8);
    EXPECT_EQ(reader.fixed(4), masked_crc32c(length_bytes));
    const auto bytes = reader.take(Reader(length_bytes).fixed(8));
    EXPECT_EQ(reader.fixed(4), masked_crc32c(bytes));
    events.push_back(read_event(bytes));
  }
  return events;
}

TEST(TensorBoard, TheFileStartsWithItsVersionAndHoldsTheScalars) {
  const TestFolder folder;
  TensorBoardWriter writer(folder / "runs");
  const std::vector<Metric> metrics = {{"step", 300, true}, {"loss", 1.25}, {"router/aux_loss", 0.5}};
  writer.write(300, metrics);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].step, 300);
  ASSERT_EQ(events[1].scalars.size(), 2u) << "step is the axis, not a scalar";
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>("loss", 1.25f)));
  EXPECT_EQ(events[1].scalars[1], (std::pair<std::string, float>("router/aux_loss", 0.5f)));
}

TEST(TensorBoard, TheFileNameIsWhatTensorBoardLooksFor) {
  const TestFolder folder;
  const std::string name = std::filesystem::path(TensorBoardWriter(folder.path()).path()).filename();
  EXPECT_EQ(name.rfind("events.out.tfevents.", 0), 0u);
}

TEST(TensorBoard, TwoRunsInOneSecondDoNotShareAFile) {
  const TestFolder folder;
  const TensorBoardWriter first(folder.path()), second(folder.path()), third(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path()) << "readers take the files in the order of their names";
  EXPECT_EQ(read_events(third.path()).size(), 1u);
}

TEST(TensorBoard, NaNStaysVisible) {
  const TestFolder folder;
  TensorBoardWriter writer(folder.path());
  const std::vector<Metric> metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  writer.write(1, metrics);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::isnan(events[1].scalars.at(0).second));
}

TEST(TensorBoard, AResumedRunForgetsTheStepsItRepeats) {
  const TestFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.forget_from(101);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].session_status, 1u);
  EXPECT_EQ(events[1].step, 101);
}

}  // namespace
}  // namespace hone
