// The bytes as a Parquet file: its footer, its pages and its rows.
#include "core/text/json.h"
#include "data/readers/parquet_reader.h"
#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile file("rows.parquet");
  constexpr int kMostRows = 300;
  file.write(hone::text_of(data, size));
  hone::expect_answer([&] {
    const auto reader = hone::open_parquet(file.path().string());
    hone::RawRow raw;
    for (int i = 0; i < kMostRows && reader->next(raw); ++i) hone::parse_row(raw);
  });
  return 0;
}
