// The same bytes as JSON of any kind, CSV and text; every row as the format that its columns fit.
#include "core/text/json.h"
#include "data/formats/sample_format.h"
#include "data/readers/byte_reader.h"
#include "data/readers/csv_reader.h"
#include "data/readers/jsonl_reader.h"
#include "fuzz_input.h"

namespace {

template <class Reader>
void read_rows(const hone::InputFile& file, std::string_view bytes) {
  constexpr int kMostRows = 100;
  file.write(bytes);
  hone::expect_answer([&] {
    Reader reader(file.path().string());
    hone::RawRow raw;
    for (int i = 0; i < kMostRows && reader.next(raw); ++i) {
      hone::expect_answer([&] {
        const std::vector<hone::LocatedRow> rows = {{hone::parse_row(raw), raw.where()}};
        hone::format_row(rows[0].row, hone::detect_format(rows).format, raw.where());
      });
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile lines("rows.jsonl"), json("rows.json"), csv("rows.csv"), text("rows.txt");
  const std::string_view bytes = hone::text_of(data, size);
  read_rows<hone::JsonlReader>(lines, bytes);
  read_rows<hone::JsonlReader>(json, bytes);
  read_rows<hone::CsvReader>(csv, bytes);
  read_rows<hone::TextReader>(text, bytes);
  return 0;
}
