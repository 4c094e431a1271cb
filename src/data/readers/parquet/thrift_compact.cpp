#include "data/readers/parquet/thrift_compact.h"

#include <limits>

namespace hone::parquet {

namespace {

constexpr int kMostDepth = 64;

}  // namespace

void ThriftReader::enter() {
  if (++depth_ > kMostDepth) fault("the metadata are nested too deep");
  in_list_ = false;
}

bool ThriftReader::next_field(int16_t& id) {
  const uint8_t head = in_.byte();
  type_ = static_cast<Type>(head & 0x0f);
  in_list_ = false;
  if (type_ == kNone) return false;
  const int delta = head >> 4;
  const int64_t next = delta == 0 ? in_.zigzag() : id + delta;
  if (next < std::numeric_limits<int16_t>::min() || next > std::numeric_limits<int16_t>::max()) {
    fault("the metadata have a field with the number {}", next);
  }
  id = static_cast<int16_t>(next);
  return true;
}

void ThriftReader::expect(Type type) {
  if (type_ != type) fault("the metadata have a field of an unexpected type");
  type_ = kNone;
}

bool ThriftReader::boolean() {
  if (type_ != kTrue && type_ != kFalse) fault("the metadata have a field of an unexpected type");
  const bool value = in_list_ ? in_.byte() == kTrue : type_ == kTrue;
  type_ = kNone;
  return value;
}

int64_t ThriftReader::integer() {
  if (type_ == kByte) {
    type_ = kNone;
    return static_cast<int8_t>(in_.byte());
  }
  if (type_ != kShort && type_ != kInt && type_ != kLong) fault("the metadata have a field of an unexpected type");
  type_ = kNone;
  return in_.zigzag();
}

int32_t ThriftReader::integer32() {
  const int64_t value = integer();
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    fault("the metadata have {}, which is not an integer of 32 bits", value);
  }
  return static_cast<int32_t>(value);
}

std::string ThriftReader::text() {
  expect(kBinary);
  const Bytes bytes = in_.take(in_.varint());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ThriftReader::ListHeader ThriftReader::list_header() {
  if (type_ != kList && type_ != kSet) fault("the metadata have a field of an unexpected type");
  type_ = kNone;
  const uint8_t head = in_.byte();
  const uint64_t count = head >> 4 == 15 ? in_.varint() : head >> 4;
  if (count > in_.left()) fault("the metadata have a list of {} elements, but {} bytes", count, in_.left());
  return {static_cast<Type>(head & 0x0f), count};
}

void ThriftReader::skip(Type type) {
  const bool in_list = in_list_;
  type_ = type;
  switch (type) {
    case kTrue:
    case kFalse:
      if (in_list) in_.byte();
      break;
    case kByte:
      in_.byte();
      break;
    case kShort:
    case kInt:
    case kLong:
      in_.varint();
      break;
    case kDouble:
      in_.take(8);
      break;
    case kUuid:
      in_.take(16);
      break;
    case kBinary:
      in_.take(in_.varint());
      break;
    case kList:
    case kSet:
      enter();
      list([] {});
      leave();
      break;
    case kMap: {
      enter();
      const uint64_t count = in_.varint();
      if (count > in_.left()) fault("the metadata have a map of {} entries, but {} bytes", count, in_.left());
      const uint8_t types = count == 0 ? 0 : in_.byte();
      for (uint64_t i = 0; i < count; ++i) {
        for (const int half : {types >> 4, types & 0x0f}) {
          in_list_ = true;
          skip(static_cast<Type>(half));
        }
      }
      leave();
      break;
    }
    case kStructure:
      structure([](int16_t) {});
      break;
    case kNone:
    default:
      fault("the metadata have a field of an unknown type");
  }
  type_ = kNone;
}

}  // namespace hone::parquet
