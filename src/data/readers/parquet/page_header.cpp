#include "data/readers/parquet/page_header.h"

#include <algorithm>

#include "data/readers/parquet/thrift_compact.h"

namespace hone::parquet {

namespace {

constexpr uint64_t kFirstWindow = 512, kMostHeaderBytes = uint64_t{16} << 20;  // it may hold the largest text of a page

uint32_t count_of(int32_t value) {
  if (value < 0) fault("the header of a page has a size of {}", value);
  return static_cast<uint32_t>(value);
}

void read_data_page(ThriftReader& in, PageHeader& header) {
  in.nested([&](int16_t id) {
    if (id == 1) header.values = count_of(in.integer32());
    if (id == 2) header.encoding = static_cast<Encoding>(in.integer32());
    if (id == 3) header.definition_encoding = static_cast<Encoding>(in.integer32());
    if (id == 4) header.repetition_encoding = static_cast<Encoding>(in.integer32());
  });
}

void read_data_page_v2(ThriftReader& in, PageHeader& header) {
  in.nested([&](int16_t id) {
    if (id == 1) header.values = count_of(in.integer32());
    if (id == 4) header.encoding = static_cast<Encoding>(in.integer32());
    if (id == 5) header.definition_bytes = count_of(in.integer32());
    if (id == 6) header.repetition_bytes = count_of(in.integer32());
    if (id == 7) header.compressed = in.boolean();
  });
}

void read_dictionary_page(ThriftReader& in, PageHeader& header) {
  in.nested([&](int16_t id) {
    if (id == 1) header.values = count_of(in.integer32());
    if (id == 2) header.encoding = static_cast<Encoding>(in.integer32());
  });
}

/// Returns the header, with `begin` as the number of its bytes.
PageHeader parse_header(Bytes bytes) {
  PageHeader header;
  bool has_data = false, has_data_v2 = false, has_dictionary = false;
  std::optional<int32_t> type, size, packed;
  ThriftReader in(bytes);
  in.structure([&](int16_t id) {
    if (id == 1) type = in.integer32();
    if (id == 2) size = in.integer32();
    if (id == 3) packed = in.integer32();
    if (id == 4) header.checksum = static_cast<uint32_t>(in.integer32());
    if (id == 5) has_data = (read_data_page(in, header), true);
    if (id == 7) has_dictionary = (read_dictionary_page(in, header), true);
    if (id == 8) has_data_v2 = (read_data_page_v2(in, header), true);
  });
  if (!type || !size || !packed) fault("the header of a page lacks its size");
  header.type = static_cast<PageType>(*type);
  header.size = count_of(*size);
  header.packed = count_of(*packed);
  header.begin = bytes.size() - in.left();
  const bool complete = header.type == PageType::kData         ? has_data && !has_data_v2 && !has_dictionary
                        : header.type == PageType::kDataV2     ? has_data_v2 && !has_data && !has_dictionary
                        : header.type == PageType::kDictionary ? has_dictionary && !has_data && !has_data_v2
                                                               : true;
  if (!complete) fault("the header of a page does not fit its type");
  return header;
}

}  // namespace

PageHeader read_page_header(const FileBytes& file, uint64_t offset, uint64_t end) {
  if (offset >= end) fault("a page is missing");
  for (uint64_t window = kFirstWindow;; window *= 16) {
    const uint64_t size = std::min({window, kMostHeaderBytes, end - offset});
    const std::string bytes = file.read(offset, size);
    PageHeader header;
    try {
      header = parse_header({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    } catch (const ParquetFault&) {
      if (size < window) throw;  // all there is
      continue;
    }
    header.begin += offset;
    if (header.packed > end - header.begin) fault("a page of {} bytes does not end before the footer", header.packed);
    return header;
  }
}

}  // namespace hone::parquet
