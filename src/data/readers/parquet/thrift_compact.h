// Thrift's compact protocol, in which Parquet writes its footer and the headers of pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

/// Reads one structure after another. Throws ParquetFault for data that end early, for nesting over 64 levels, for an
/// element of another type than the caller reads, and for a list that claims more elements than bytes are left.
class ThriftReader {
 public:
  explicit ThriftReader(Bytes bytes) : in_(bytes) {}

  /// Calls `read(id)` for every field of a structure; `read` reads the field with one of the calls below, or leaves it
  /// alone, which skips it.
  template <class Read>
  void structure(Read&& read) {
    int16_t id = 0;
    enter();
    while (next_field(id)) {
      read(id);
      if (type_ != kNone) skip(type_);
    }
    leave();
  }

  bool boolean();
  int64_t integer();  ///< has 8 to 64 bits
  int32_t integer32();
  std::string text();
  /// Calls `read()` for every element of a list; it reads the element with one of the calls above.
  template <class Read>
  void list(Read&& read) {
    const auto [type, count] = list_header();
    for (uint64_t i = 0; i < count; ++i) {
      type_ = type;
      in_list_ = true;
      read();
      if (type_ != kNone) skip(type_);
    }
    in_list_ = false;
    type_ = kNone;
  }
  /// A structure that is a field or an element.
  template <class Read>
  void nested(Read&& read) {
    expect(kStructure);
    structure(read);
  }

  /// Bytes that were not read.
  size_t left() const { return in_.left(); }

 private:
  enum Type : uint8_t {
    kNone = 0,
    kTrue = 1,
    kFalse = 2,
    kByte = 3,
    kShort = 4,
    kInt = 5,
    kLong = 6,
    kDouble = 7,
    kBinary = 8,
    kList = 9,
    kSet = 10,
    kMap = 11,
    kStructure = 12,
    kUuid = 13,
  };
  struct ListHeader {
    Type type;
    uint64_t count;
  };

  bool next_field(int16_t& id);
  ListHeader list_header();
  void expect(Type type);
  void skip(Type type);
  void enter();
  void leave() {
    --depth_;
    type_ = kNone;
  }

  ByteCursor in_;
  Type type_ = kNone;     // the type of the field or element that is to be read
  bool in_list_ = false;  // a boolean has a byte of its own there
  int depth_ = 0;
};

}  // namespace hone::parquet
